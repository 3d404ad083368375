"""The tables that jobs write to."""
