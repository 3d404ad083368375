"""History in Spark, `local[2]`, compared with the same rows from memory."""
