"""One shard of the log: stamps, epochs, generations, its tail in memory."""
