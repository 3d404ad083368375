"""The job that learns topic patterns."""
