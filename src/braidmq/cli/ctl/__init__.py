"""``braidmq ctl``: see and steer a running node."""
