"""Words shared by all layers: errors, settings, clocks, metrics."""
