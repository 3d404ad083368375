"""A connection between two nodes: throughput and CPU time per frame."""
