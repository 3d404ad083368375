"""Pipeline jobs over the history: each is a command of `braidmq pipeline` and a PySpark application of its own."""
