"""Shared by all jobs: options, sessions, progress, failures, stopping."""
