"""History under Spark, `local[2]`, beside what Spark does with the same rows from memory."""
