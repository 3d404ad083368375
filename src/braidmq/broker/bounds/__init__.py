"""Limits for the memory and work that clients cause."""
