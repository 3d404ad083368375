"""Publishing and subscribing on the command line."""
