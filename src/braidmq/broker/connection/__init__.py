"""One client connection: its transport, deadlines, rates and traces."""
