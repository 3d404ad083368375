"""What the log of a node without a database needs of its node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from braidmq.broker.ports import Change, LogScan, Refusal
from braidmq.lane.flows.flow import Flow
from braidmq.lane.recording.commit_outcomes import Pending
from braidmq.lane.recording.recorder import Producer


class NodeBlock(Protocol):
    """What one turn has collected; `lane.path.recorder.Block` on a node whose recorder is remote."""

    @property
    def entries(self) -> Mapping[int, Sequence[tuple[bytes, bytes]]]:
        """By shard: topic and value of each record."""

    @property
    def changes(self) -> Sequence[Change]:
        """Rows to be written with them."""

    @property
    def pendings(self) -> list[Pending]:
        """The messages that wait, in the order of arrival; those that are recorded have a ``place`` among the entries."""

    def runs(self) -> list[tuple[int, list[bytes], int]]:
        """Those of one client that follow each other: index of the first, their records if they are recorded, and the bytes."""

    def producer_marks(self) -> Mapping[int, tuple[Producer, int, int, Change | None]]:
        """By index of the pendings: the producer of a message, its sequence and check value, and its key."""

    def refused(self, refusal: Refusal) -> None:
        """Nothing of it is stored."""


class NodeOutcomes(Protocol):
    """Acknowledges and rejects messages; `lane.path.commit_outcomes.CommitOutcomes`."""

    def answer(self, pendings: list[Pending], codes: list[int]) -> None:
        """The home has answered these."""

    def refuse(self, pendings: list[Pending], is_in_doubt: bool) -> None:
        """These were not stored, or it is unknown."""


class NodeChannels(Protocol):
    """The numbers of this node's channels."""

    def of_flow(self, flow: Flow) -> int:
        """The channel that publishes with this flow."""

    def of_client(self, client_id: str) -> int:
        """The channel that owns the client id; 0 if none does."""


class WaitTimer(Protocol):
    """Something that will happen."""

    def cancel(self) -> None:
        """It will not."""


Later = Callable[[float, Callable[[], None]], WaitTimer]  # calls back after this many seconds


class NodeScans(Protocol):
    """Reads the log; `scans.RemoteScans` of the only core, or `merged_scans.MergedScans` of several."""

    def open(self, filters: Sequence[str], positions: Mapping[int, int], with_session_only: bool) -> LogScan:
        """Read above these positions. Raises Unavailable."""
