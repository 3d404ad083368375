"""The cost of single steps of the fast lane, compiled and uncompiled. ``python -m benchmarks.lane``."""
