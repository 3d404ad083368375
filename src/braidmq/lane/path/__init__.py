"""The path of a message: frames, routes, flows, outboxes. Bytes and ints, no logging."""
