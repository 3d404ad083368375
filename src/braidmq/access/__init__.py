"""Authentication, authorisation and bans."""
