"""Shared subscriptions: groups, their cursor in the log, and their reservations."""
