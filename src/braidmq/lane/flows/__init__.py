"""Flows: what a session may have under way, and what waits for it in the log, in a queue, or with a shared group."""
