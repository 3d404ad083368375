"""The database beneath the log: RocksDB, batches, commits, health."""
