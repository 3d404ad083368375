"""The progress of a partition: which rows are settled, where to resume after a reconnect, which numbers to give up.

Rows are counted from 1, and row n is the message with the sequence base + n. A row is *settled* when the broker has acknowledged
it, or has refused it and the refusal is dealt with. The broker counts what it has recorded; this counts the rest:

- A row that was refused has used its number, but on disk the broker is behind it as long as nothing follows.
- So is it for rows that are acknowledged and not recorded, because history does not cover their topics.

So on a new connection the numbers of settled rows are *given up*, as one range; it counts only if the broker's own count reaches
up to it. No row is ever passed over of which nobody knows what became of it.
"""

from __future__ import annotations

from braidmq.base.errors import UsageError


class SettledRows:
    """The settled rows of one attempt at a partition."""

    def __init__(self) -> None:
        self.settled = 0  # every row up to this one is
        self.begun_at = -1  # what the broker had when this attempt began
        self._early: set[int] = set()  # settled rows that are further on
        self._refused: set[int] = set()  # rows that were refused, and are dealt with; not yet among the settled ones
        self._is_behind = False  # the broker did not know of settled rows

    def acknowledge_next(self, count: int) -> None:
        """The next rows after the settled ones are acknowledged, in order."""
        self.settled += count
        self._absorb()

    def acknowledge(self, row: int) -> None:
        """A row is acknowledged."""
        if row == self.settled + 1:
            self.settled = row
            self._absorb()
        elif row > self.settled:
            self._early.add(row)

    def refuse(self, row: int) -> None:
        """A row was refused for good, and nothing more is to be done about it."""
        if row > self.settled:
            self._refused.add(row)
            self._absorb()

    def _absorb(self) -> None:
        while self.settled + 1 in self._early or self.settled + 1 in self._refused:
            self.settled += 1
            self._early.discard(self.settled)
            self._refused.discard(self.settled)

    def give_up(self) -> tuple[int, int] | None:
        """The rows whose numbers are to be given up with the next CONNECT, first and last; None if there are none."""
        if self._refused and not self._is_behind:
            # What is before them was under way when the connection ended. If it was recorded, the numbers follow on that.
            first = last = min(self._refused)
            while last + 1 in self._refused:
                last += 1
            return first, last
        return (self.begun_at + 1, self.settled) if self.settled > self.begun_at >= 0 else None

    def join(self, row: int) -> bool:
        """The broker says that it is at this row. False: connect again, for it does not know of rows that are settled.

        Raises UsageError if it has lost what it had.
        """
        if self.begun_at < 0:
            self.begun_at = row
        if row < self.begun_at:
            raise UsageError(
                f"the broker had {self.begun_at} messages of this partition and now reports {row}",
                "is it another broker, or was it restored from a backup?",
            )
        # What is further on is sent again, and acknowledged or refused again.
        self._early.clear()
        self._refused = {each for each in self._refused if each > row}
        self.settled = max(self.settled, row)
        self._absorb()
        self._is_behind = self.settled > row
        if not self._is_behind:
            self._refused.clear()
        return not self._is_behind
