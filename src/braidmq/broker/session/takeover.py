"""What a CONNECT does to the session of its client id: a table of cases, and the steps that each case takes.

``TABLE`` is the table of docs/sessions.md as data; a test compares the two. ``resolve`` finds the row of a CONNECT and its
steps. Nothing here touches a session or a connection: ``TakeoverSteps`` takes the steps, one after the other, and no step calls
back into another one. If it stops between two steps, it completes the old connection's end, and the old session, if it still
exists, waits on.

Taking the steps is not the end. Until CONNACK is sent the newcomer only *holds* the session, which keeps its will, its expiry and
its user; only its timers stand still. ``Lifecycle.commit`` makes the newcomer's terms the session's. If the newcomer goes or is
refused before that, ``Lifecycle.abandon`` lets the session wait on, as if the newcomer had not come.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum, StrEnum, auto
from typing import Final, NamedTuple


class Old(StrEnum):
    """What a CONNECT finds under its client id."""

    NONE = "none"
    PROTECTED = "a user's, and the new client has no user"
    BRIEF = "connected, expiry 0"
    LASTING = "connected, expiry above 0"
    AWAY = "not connected"


class Fate(StrEnum):
    """What becomes of the old session."""

    NOTHING = "-"
    UNCHANGED = "unchanged"
    ENDED = "ended"
    DISCARDED = "discarded"
    RESUMED = "resumed"


class WillFate(StrEnum):
    """What becomes of the will that the old session has."""

    NONE = "-"
    PUBLISHED = "published"
    KEPT = "not published"


class Row(NamedTuple):
    """One case. A will *without delay* is due when its connection ends, one *with delay* when the session ends or later."""

    old: Old
    continues: bool | None  # Clean Start is 0 and the session is open to the client's user; None: either way
    closes: bool  # the old connection, with 0x8E
    fate: Fate
    session_present: bool | None  # None: the CONNECT is refused with 0x87
    prompt_will: WillFate
    delayed_will: WillFate


# fmt: off
TABLE: Final = (
    Row(Old.NONE,      None,  False, Fate.NOTHING,   False, WillFate.NONE,      WillFate.NONE),
    Row(Old.BRIEF,     None,  True,  Fate.ENDED,     False, WillFate.PUBLISHED, WillFate.PUBLISHED),
    Row(Old.LASTING,   False, True,  Fate.DISCARDED, False, WillFate.PUBLISHED, WillFate.PUBLISHED),
    Row(Old.LASTING,   True,  True,  Fate.RESUMED,   True,  WillFate.PUBLISHED, WillFate.KEPT),
    Row(Old.AWAY,      False, False, Fate.DISCARDED, False, WillFate.NONE,      WillFate.PUBLISHED),
    Row(Old.AWAY,      True,  False, Fate.RESUMED,   True,  WillFate.NONE,      WillFate.KEPT),
    Row(Old.PROTECTED, None,  False, Fate.UNCHANGED, None,  WillFate.KEPT,      WillFate.KEPT),
)
# fmt: on


class Step(Enum):
    """One thing to do; the steps of a case are taken in their order, without waiting for anything."""

    REFUSE = auto()  # the CONNECT, and leave everything as it is
    CLOSE = auto()  # the old connection; its session is without one from here on
    RETURN_LEASES = auto()  # give messages of shared groups that the old client did not acknowledge to other members
    PUBLISH_PROMPT_WILL = auto()  # the old connection has ended; a will with a delay stays
    END = auto()  # the old session, publishing the will that it still has
    DISCARD = auto()  # the same, for a session that would have lived on
    TELL_CLOSED = auto()  # hooks and presence learn that the old connection has ended
    CREATE = auto()  # a new session, held by the newcomer
    RESUME = auto()  # the old session is held by the newcomer: stop its timers


# What follows from CLOSE. These steps are taken even if the newcomer goes before its last one: the old connection has ended.
FOLLOW_CLOSE: Final = frozenset({Step.RETURN_LEASES, Step.PUBLISH_PROMPT_WILL, Step.END, Step.TELL_CLOSED})


class Facts(NamedTuple):
    """What decides the case: the old session, if there is one, and what the CONNECT says."""

    has_session: bool
    is_connected: bool = False
    expiry_s: int = 0
    is_protected: bool = False  # it belongs to a user, and the new client has none although there are users
    is_open: bool = True  # to the new client's user
    clean_start: bool = False


class Case(NamedTuple):
    """A row of the table and its steps."""

    row: Row
    steps: tuple[Step, ...]


def steps_of(row: Row) -> Iterator[Step]:
    """The steps that make a row of the table true."""
    if row.fate is Fate.UNCHANGED:
        yield Step.REFUSE
        return
    lives_on = row.old is Old.LASTING  # once its connection has ended
    if row.closes:
        yield Step.CLOSE
    if row.closes and lives_on:
        yield Step.RETURN_LEASES
        if row.prompt_will is WillFate.PUBLISHED:
            yield Step.PUBLISH_PROMPT_WILL
    if row.fate is Fate.ENDED:
        yield Step.END
    if row.closes:
        yield Step.TELL_CLOSED
    if row.fate is Fate.DISCARDED:
        yield Step.DISCARD
    yield Step.RESUME if row.fate is Fate.RESUMED else Step.CREATE


_CASES: Final = {
    (row.old, continues): Case(row, tuple(steps_of(row)))
    for row in TABLE
    for continues in ((False, True) if row.continues is None else (row.continues,))
}
NEW: Final = _CASES[Old.NONE, False]  # most CONNECTs of a storm


def resolve(facts: Facts) -> Case:
    """The case of a CONNECT."""
    if not facts.has_session:
        return NEW
    if facts.is_protected:
        old = Old.PROTECTED
    elif not facts.is_connected:
        old = Old.AWAY
    else:
        old = Old.LASTING if facts.expiry_s > 0 else Old.BRIEF
    return _CASES[old, facts.is_open and not facts.clean_start]
