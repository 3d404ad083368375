"""What the cores of a cluster exchange with each other."""
