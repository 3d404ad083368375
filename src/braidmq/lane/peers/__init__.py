"""Messages on their way to other nodes and from them."""
