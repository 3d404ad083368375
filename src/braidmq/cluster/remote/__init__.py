"""A node that only carries connections: what stands there for storage, which its core has."""
