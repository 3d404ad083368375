"""The history service: serves the log over Arrow Flight, in a separate process."""
