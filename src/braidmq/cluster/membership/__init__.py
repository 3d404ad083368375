"""Who belongs to a cluster, who counts as alive, and who leads which shard."""
