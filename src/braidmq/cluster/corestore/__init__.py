"""Small tables that all cores of a cluster agree on."""
