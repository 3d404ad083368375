"""What single steps of the fast lane cost, compiled and uncompiled. ``python -m benchmarks.lane``."""
