"""What an operator is told of a whole cluster, and what an operator does to it."""
