"""Whether a home knows who wants a message. While it cannot be sure, it records (C23).

The home probes each *subject*: every live node and every other core. An answer names how far the subject's own logs of routes had
come when it was given. The subject is *confirmed* for `SURE_S` from the sending of the probe, once the home has these logs that
far. A subject tells a client of its subscription when all cores have it, or after `SILENT_S` without a word to this one. An
answer without the new route was given before that, so the home is in doubt before the client relies on it:

    probe sent <= answered < route written;    probe sent + SURE_S < route written + SILENT_S

While a core is away, declared dead or not, the others are in doubt: they cannot know what it has told its clients last. It is
confirmed again when it is back under its next term.

Invariant: while `is_sure`, the home has every route of every subject that a client was told of.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Final, Generic, NamedTuple, TypeVar

from braidmq.net.proto_v1 import Position

PROBE_S: Final = 0.35  # between probes of a subject: one may be late
SURE_S: Final = 0.8
SILENT_S: Final = 1.0

_NEVER: Final = float("-inf")
_ANSWERS_MAX: Final = 8  # of a subject whose routes do not arrive; older ones would confirm nothing any more

Subject = TypeVar("Subject", bound=Hashable)


class _Answer(NamedTuple):
    sent_at: float
    positions: Mapping[str, Position]


class _Probed:
    """What is known of one subject."""

    __slots__ = ("answers", "incarnation", "sent", "sure_until")

    def __init__(self) -> None:
        self.sent: dict[int, float] = {}  # probes that are not answered, on the present connection
        self.answers: deque[_Answer] = deque(maxlen=_ANSWERS_MAX)  # that name more than the home has
        self.sure_until = _NEVER


class Confidence(Generic[Subject]):
    """Which subjects are confirmed, and until when."""

    def __init__(self, position_of: Callable[[str], Position | None]) -> None:
        """``position_of``: how far the home has an origin; None: it has nothing of it."""
        self._position_of = position_of
        self._subjects: dict[Subject, _Probed] = {}
        self._number = 0
        self._sure_until = float("inf")  # of all of them: at least until then
        self._doubted: Subject | None = None  # one that is not confirmed

    def __contains__(self, subject: object) -> bool:
        return subject in self._subjects

    @property
    def doubted(self) -> Subject | None:
        """A subject that was not confirmed at the last ``is_sure``; None if all were."""
        return self._doubted

    def expect(self, subject: Subject) -> None:
        """There is such a subject: in doubt until it is confirmed."""
        if subject not in self._subjects:
            self._subjects[subject] = _Probed()
            self._sure_until = _NEVER

    def forget(self, subject: Subject) -> None:
        """A node is dead: it has no routes."""
        self._subjects.pop(subject, None)
        if self._doubted == subject:
            self._doubted = None

    def lost(self, subject: Subject) -> None:
        """The connection is gone, with what was on its way. What was confirmed stays so for its time."""
        probed = self._subjects.get(subject)
        if probed is not None:
            probed.sent.clear()

    def probe(self, subject: Subject, now: float) -> int | None:
        """The number of a new probe, to be sent now; None: it is no subject."""
        probed = self._subjects.get(subject)
        if probed is None:
            return None
        self._number += 1
        probed.sent[self._number] = now
        for number in [number for number, sent_at in probed.sent.items() if sent_at + SURE_S <= now]:
            del probed.sent[number]
        return self._number

    def answered(self, subject: Subject, number: int, positions: Mapping[str, Position]) -> None:
        """A subject has answered a probe: its own logs have come this far."""
        probed = self._subjects.get(subject)
        sent_at = None if probed is None else probed.sent.pop(number, None)
        if probed is not None and sent_at is not None:
            probed.answers.append(_Answer(sent_at, positions))

    def is_sure(self, now: float) -> bool:
        """Whether all subjects are confirmed."""
        if now < self._sure_until:
            return True
        doubted = self._doubted
        if doubted is not None and self._until(self._subjects[doubted]) <= now:
            return False
        self._doubted = None
        lowest = float("inf")
        for subject, probed in self._subjects.items():
            until = self._until(probed)
            if until <= now:
                self._doubted = subject
                return False
            lowest = min(lowest, until)
        self._sure_until = lowest
        return True

    def is_known_since(self, subject: Subject, time: float) -> bool:
        """Whether the home has all routes that a subject had at this time: a probe that was sent since is confirmed."""
        probed = self._subjects.get(subject)
        return probed is None or self._until(probed) > time + SURE_S

    def _until(self, probed: _Probed) -> float:
        while probed.answers and self._has(probed.answers[0].positions):
            probed.sure_until = max(probed.sure_until, probed.answers.popleft().sent_at + SURE_S)
        return probed.sure_until

    def _has(self, positions: Mapping[str, Position]) -> bool:
        for origin, position in positions.items():
            found = self._position_of(origin)
            if found is None:
                # Nothing was ever written there, and nothing is sent of it: there is nothing to know.
                if position.sequence:
                    return False
            elif found < position:
                return False
        return True
