"""The node's side of the history service: supervisor, answers to its requests, tokens."""
