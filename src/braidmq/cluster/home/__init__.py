"""A core: what it does for the nodes whose clients have their homes on it."""
