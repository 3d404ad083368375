"""The contract between a node and its operator's tools, and the client that the tools share."""
