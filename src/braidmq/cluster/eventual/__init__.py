"""The old way to decide who owns a client id, for comparison and upgrades: a replicated bag and a cluster lock."""
