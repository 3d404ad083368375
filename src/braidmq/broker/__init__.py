"""One node: listeners, channels, sessions, routing."""
