"""Handlers for the packets that clients send."""
