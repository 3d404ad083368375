"""The kernels of the log: records, rows, scans, columns and the index of topics."""
