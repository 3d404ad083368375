"""Maintenance of a running log: watchdog, retention, generations, statistics, backups."""
