"""Compares braidmq with other brokers: same load, same machine, same run. ``python -m benchmarks --help``."""
