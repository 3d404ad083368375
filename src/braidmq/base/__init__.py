"""Shared by all layers: errors, settings, clocks, units, logs."""
