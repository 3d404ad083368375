"""Benchmarks of the storage layer, without a broker."""
