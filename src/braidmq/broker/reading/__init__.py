"""Reading the log for clients: catch-up, replay, and records whose place is known."""
