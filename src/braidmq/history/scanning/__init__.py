"""Epochs as streams of record batches."""
