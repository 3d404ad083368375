"""Rows stored with the records: sessions, retained and delayed messages, groups, producers, readers."""
