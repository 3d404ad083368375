"""The log: records on disk, found by time and topic filter."""
