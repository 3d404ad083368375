"""The job that republishes history."""
