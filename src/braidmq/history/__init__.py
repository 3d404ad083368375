"""The history service: the log over Arrow Flight, in a process of its own."""
