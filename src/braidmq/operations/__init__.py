"""What an operator sees and does on a running node."""

from __future__ import annotations

from braidmq.operations.node import NodeOperations

__all__ = ["NodeOperations"]
