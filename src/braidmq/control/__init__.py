"""What a node and its operator's tools agree on, and the client that the tools share."""
