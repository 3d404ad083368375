"""Which channel owns a client id: versions, the table of a home, and the decisions on claims, without I/O."""
