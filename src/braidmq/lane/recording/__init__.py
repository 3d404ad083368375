"""Messages on their way to the log, and what becomes of them after their commit."""
