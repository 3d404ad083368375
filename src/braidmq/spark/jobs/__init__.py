"""Pipeline jobs on the history: each is a command of `braidmq pipeline` and a PySpark application."""
