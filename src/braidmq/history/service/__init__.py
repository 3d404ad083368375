"""The process of the history service: Arrow Flight, authorisation, quotas."""
