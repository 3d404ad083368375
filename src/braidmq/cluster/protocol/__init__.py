"""What a node and a home agree on: claims, numbered blocks, operations, and how they look in frames."""
