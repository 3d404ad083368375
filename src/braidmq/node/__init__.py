"""The composition root: builds every part of a node from its configuration, starts and stops them in order.

The only package that knows all parts. A node belongs to the event loop that called its ``start``.
"""

from __future__ import annotations

from braidmq.node.core import Node, WorkerPlan
from braidmq.node.replicant import Replicant

__all__ = ["Node", "Replicant", "WorkerPlan"]
