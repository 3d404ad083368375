"""What a client's connection does with a message: frames in, decisions, frames out. Bytes and ints, no logging."""
