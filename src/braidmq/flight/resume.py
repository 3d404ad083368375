"""A stream that survives a lost connection: it is requested again, and rows already delivered are skipped.

The service guarantees an order only for the rows of one topic, so the number of rows delivered does not identify them. Their
positions do: a ticket covers one shard, in which positions are unique. So positions are requested with every ticket and kept in
memory, 8 bytes per row, up to a limit; beyond it an interrupted stream is an error, and the caller must read the ticket from the
start.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from braidmq.flight import columns, wire

_POSITION: Final = "position"
# 32 MiB. The service divides a range into far smaller parts.
_REMEMBERED_MAX: Final = 4 << 20


class Resume:
    """The rows of a ticket delivered so far. Request `ticket`, and pass every received batch through `unseen`."""

    def __init__(self, ticket: wire.Ticket, remembered_max: int = _REMEMBERED_MAX) -> None:
        self.schema = columns.choose(ticket.columns)
        asked = ticket.columns
        if asked is not None and _POSITION not in asked:
            asked = [*asked, _POSITION]
        self.ticket = msgspec.structs.replace(ticket, columns=asked)
        self._remembered_max = remembered_max
        self._given: list[npt.NDArray[np.int64]] = []
        self._to_skip: npt.NDArray[np.int64] | None = None
        self.rows = 0

    @property
    def can_resume(self) -> bool:
        """Whether the positions of all delivered rows are in memory."""
        return self.rows <= self._remembered_max

    def begin_again(self) -> None:
        """The ticket is requested again: skip the rows delivered so far."""
        self._to_skip = np.sort(np.concatenate(self._given)) if self._given else None

    def unseen(self, batch: pa.RecordBatch) -> pa.RecordBatch | None:
        """The rows of a batch not delivered yet, with the requested columns; None if there are none."""
        positions = batch.column(_POSITION).to_numpy()
        if self._to_skip is not None:
            at = np.searchsorted(self._to_skip, positions)
            is_new = self._to_skip[np.minimum(at, len(self._to_skip) - 1)] != positions
            batch, positions = batch.filter(pa.array(is_new)), positions[is_new]
        if not batch.num_rows:
            return None
        self.rows += batch.num_rows
        if self.can_resume:
            # A copy: the view would keep the whole batch in memory.
            self._given.append(positions.copy())
        else:
            self._given.clear()
        return batch.select(self.schema.names)
