"""``braidmq history``: read and tend the durable log through the node that runs it."""
