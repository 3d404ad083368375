"""History as a Spark table and stream."""
