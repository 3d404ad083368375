"""Listening sockets of a node, and accepting from them; for clients, operators and other nodes."""
