"""The configuration: settings, keys, where they come from, checks, and the sample."""
