"""A core's workers: their processes, and what the core tells them."""
