"""Several nodes that serve clients as one broker."""
