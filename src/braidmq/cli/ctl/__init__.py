"""``braidmq ctl``: inspect and control a running node."""
