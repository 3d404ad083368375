"""Reading the log by position and topic filter."""
