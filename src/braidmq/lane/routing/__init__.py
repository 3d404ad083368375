"""Which subscriptions a topic matches, and how each of them gets a message."""
