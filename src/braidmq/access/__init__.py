"""Who may connect and what they may do."""
