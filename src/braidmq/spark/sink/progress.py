"""The progress of a partition: which rows are settled, where to resume after a reconnect, which numbers to give up.

Rows are counted from 1, and row n is the message with the sequence base + n. A row is *settled* when the broker has acknowledged
it, or has rejected it and the rejection is handled. The broker counts what it has recorded; this counts the rest:

- A rejected row has used its number, but the broker's count on disk stays behind it until another row follows.
- The same is true of rows that are acknowledged but not recorded, because history does not cover their topics.

So on a new connection the numbers of settled rows are *given up*, as one range; it is valid only if the broker's own count
reaches up to it. No row is ever skipped whose fate is unknown.
"""

from __future__ import annotations

from braidmq.base.errors import UsageError


class SettledRows:
    """The settled rows of one attempt at a partition."""

    def __init__(self) -> None:
        self.settled = 0  # every row up to this one is settled
        self.begun_at = -1  # what the broker had when this attempt began
        self._early: set[int] = set()  # settled rows beyond that
        self._refused: set[int] = set()  # rejected and handled rows beyond `settled`
        self._is_behind = False  # the broker did not know of settled rows

    def acknowledge_next(self, count: int) -> None:
        """Record that the next `count` rows after the settled ones are acknowledged."""
        self.settled += count
        self._absorb()

    def acknowledge(self, row: int) -> None:
        """Record that a row is acknowledged."""
        if row == self.settled + 1:
            self.settled = row
            self._absorb()
        elif row > self.settled:
            self._early.add(row)

    def refuse(self, row: int) -> None:
        """Record that a row was permanently rejected, and that the rejection is handled."""
        if row > self.settled:
            self._refused.add(row)
            self._absorb()

    def _absorb(self) -> None:
        while self.settled + 1 in self._early or self.settled + 1 in self._refused:
            self.settled += 1
            self._early.discard(self.settled)
            self._refused.discard(self.settled)

    def give_up(self) -> tuple[int, int] | None:
        """The first and last row whose numbers the next CONNECT must give up; None if there are none."""
        if self._refused and not self._is_behind:
            # Rows before them were in flight when the connection ended. If they were recorded, the given-up numbers follow them.
            first = last = min(self._refused)
            while last + 1 in self._refused:
                last += 1
            return first, last
        return (self.begun_at + 1, self.settled) if self.settled > self.begun_at >= 0 else None

    def join(self, row: int) -> bool:
        """Take the broker's position. Returns False if a new connection is needed because the broker does not know settled rows.

        Raises UsageError if the broker has lost rows.
        """
        if self.begun_at < 0:
            self.begun_at = row
        if row < self.begun_at:
            raise UsageError(
                f"the broker had {self.begun_at} messages of this partition and now reports {row}",
                "is it another broker, or was it restored from a backup?",
            )
        # Later rows are sent again, and acknowledged or rejected again.
        self._early.clear()
        self._refused = {each for each in self._refused if each > row}
        self.settled = max(self.settled, row)
        self._absorb()
        self._is_behind = self.settled > row
        if not self._is_behind:
            self._refused.clear()
        return not self._is_behind
