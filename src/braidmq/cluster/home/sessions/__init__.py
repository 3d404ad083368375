"""Claims at the home: the sessions that live on nodes, their owners, and their wills."""
