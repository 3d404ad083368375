"""The view of the log through a secondary, updated at each catch-up."""
