"""The replication log: each origin writes its own rows, and every other node has a copy of them."""
