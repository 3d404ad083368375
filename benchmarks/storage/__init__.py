"""The storage layer, without a broker around it."""
