"""The cluster clock: one time for all nodes, by which connections are ordered, with a bound on each node's error (R1)."""
