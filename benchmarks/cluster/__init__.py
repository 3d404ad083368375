"""Benchmarks of the cluster: what the way through other nodes costs, compared with one node. ``make bench-cluster`` runs them."""
