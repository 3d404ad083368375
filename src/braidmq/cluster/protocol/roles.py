"""The roles of nodes and the purposes of their connections, as they stand in a hello."""

from __future__ import annotations

from typing import Final

CORE: Final = "core"
REPLICANT: Final = "replicant"
WORKER: Final = "worker"
CALLS: Final = "calls"
MESSAGES: Final = "messages"
