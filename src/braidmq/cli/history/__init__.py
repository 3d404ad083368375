"""``braidmq history``: read and manage the durable log through the running node."""
