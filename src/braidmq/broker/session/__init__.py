"""Sessions: their state and their rows on disk."""
