"""Topic names and topic filters (section 4.7 of the specification): validity, matching, inclusion, and `$share` etc.

Nothing here recurses or allocates more than the list of levels, so the cost is proportional to the length of a topic.
`matches`, `covers` and `overlaps` expect valid names and filters.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import Final

from msgspec import Struct

from braidmq.base.errors import ProtocolViolation
from braidmq.mqtt.reasons import Reason

LEVELS_MAX: Final = 128
TOPIC_BYTES_MAX: Final = 65_535

SHARE_PREFIX: Final = "$share/"
EXCLUSIVE_PREFIX: Final = "$exclusive/"
REPLAY_PREFIX: Final = "$replay/"


class SubscriptionTarget(Struct, frozen=True, gc=False):
    """A parsed subscription: `topic_filter` is without `$share/GROUP/`, `$exclusive/` and `$replay/START/`."""

    topic_filter: str
    group: str | None = None
    exclusive: bool = False
    replay: str | None = None  # the start, as it was written


def check_topic_name(topic: str) -> None:
    """Raise `ProtocolViolation` (0x90) unless the text is a valid topic name, with any number of levels."""
    flaw = _flaw(topic)
    if flaw:
        raise _invalid_name(f"a topic name {flaw}")
    if "+" in topic or "#" in topic:
        raise _invalid_name("a topic name contains a wildcard")  # [MQTT-4.7.0-1]


def check_topic(topic: str, levels_max: int = LEVELS_MAX) -> None:
    """Raise `ProtocolViolation` (0x90) unless the text is a topic name of at most `levels_max` levels."""
    check_topic_name(topic)
    if topic.count("/") >= levels_max:
        raise _invalid_name(f"a topic name has more than {levels_max} levels")


def check_filter(topic_filter: str, levels_max: int = LEVELS_MAX) -> None:
    """Raise `ProtocolViolation` (0x8F) unless the text is a topic filter of at most `levels_max` levels.

    The levels of a `$share`, `$exclusive` or `$replay` subscription are those of the filter inside.
    """
    topic_filter = parse_subscription(topic_filter).topic_filter
    flaw = _flaw(topic_filter)
    if flaw:
        raise _invalid_filter(f"a topic filter {flaw}")
    if topic_filter.count("/") >= levels_max:
        raise _invalid_filter(f"a topic filter has more than {levels_max} levels")
    hash_at = topic_filter.find("#")
    # [MQTT-4.7.1-1]: alone or directly after a slash, and always the last character.
    if hash_at >= 0 and (hash_at != len(topic_filter) - 1 or topic_filter[-2:] not in ("#", "/#")):
        raise _invalid_filter("# is not the whole last level of a topic filter")
    # [MQTT-4.7.1-2]: it must be the whole level.
    if "+" in topic_filter and any("+" in level and level != "+" for level in topic_filter.split("/")):
        raise _invalid_filter("+ is not a whole level of a topic filter")


def parse_subscription(topic_filter: str) -> SubscriptionTarget:
    """Parse `$share/GROUP/FILTER`, `$exclusive/FILTER`, `$replay/START/FILTER` and `$share/GROUP/$replay/START/FILTER`.

    Raises `ProtocolViolation` (0x8F) if a part is missing or forms are nested in any other way. The start and the filter inside
    are not checked.
    """
    if topic_filter.startswith(SHARE_PREFIX):
        group, slash, inner = topic_filter[len(SHARE_PREFIX) :].partition("/")
        # [MQTT-4.8.2-1], [MQTT-4.8.2-2]
        if not group or "+" in group or "#" in group:
            raise _invalid_filter("the share name is empty or contains a wildcard")
        if not slash or not inner:
            raise _invalid_filter("a shared subscription has no topic filter")
        start = None
        if inner.startswith(REPLAY_PREFIX):
            start, inner = _parse_replay(inner)
        target = SubscriptionTarget(inner, group=group, replay=start)
    elif topic_filter.startswith(EXCLUSIVE_PREFIX):
        inner = topic_filter[len(EXCLUSIVE_PREFIX) :]
        if not inner:
            raise _invalid_filter("an exclusive subscription has no topic filter")
        target = SubscriptionTarget(inner, exclusive=True)
    elif topic_filter.startswith(REPLAY_PREFIX):
        start, inner = _parse_replay(topic_filter)
        target = SubscriptionTarget(inner, replay=start)
    else:
        return SubscriptionTarget(topic_filter)
    if inner.startswith((SHARE_PREFIX, EXCLUSIVE_PREFIX, REPLAY_PREFIX)):
        raise _invalid_filter("a $share, $exclusive or $replay subscription is inside another")
    return target


def _parse_replay(topic_filter: str) -> tuple[str, str]:
    """The start, and the filter inside."""
    start, _, inner = topic_filter[len(REPLAY_PREFIX) :].partition("/")
    if not start or not inner:
        raise _invalid_filter("$replay must be followed by a start and a topic filter, as in $replay/-24h/plant/#")
    return start, inner


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a subscription to `topic_filter` receives messages published to `topic`."""
    if topic_filter == topic:
        return True
    if topic[0] == "$" and topic_filter[0] in "+#":
        return False  # [MQTT-4.7.2-1]
    topic_levels = topic.split("/")
    filter_levels = topic_filter.split("/")
    if filter_levels[-1] == "#":
        # The level above # is matched too: a/# matches a.
        filter_levels.pop()
        if len(topic_levels) < len(filter_levels):
            return False
    elif len(topic_levels) != len(filter_levels):
        return False
    # zip ends with the filter, which never has more levels than the topic here.
    return all(wanted in ("+", level) for wanted, level in zip(filter_levels, topic_levels, strict=False))


def covers(wider: str, narrower: str) -> bool:
    """Whether `wider` matches every topic that `narrower` matches."""
    if wider == narrower:
        return True
    if _are_apart_by_dollar(wider, narrower):
        return False
    wider_levels, narrower_levels = _levels(wider), _levels(narrower)
    if wider_levels[-1] == "#":
        wider_levels.pop()
        if len(narrower_levels) < len(wider_levels):
            return False
    elif len(narrower_levels) != len(wider_levels):
        return False
    for wide, narrow in zip(wider_levels, narrower_levels, strict=False):
        # A # in the narrower one also matches zero levels, which neither a name nor + does.
        if narrow == "#" or wide not in ("+", narrow):
            return False
    return True


def overlaps(a: str, b: str) -> bool:
    """Whether there is a topic that both filters match."""
    if a == b:
        return True
    if _are_apart_by_dollar(a, b) or _are_apart_by_dollar(b, a):
        return False
    for level_a, level_b in zip_longest(_levels(a), _levels(b)):
        # Reached with equal levels before it, # matches whatever is left of the other, even nothing.
        if level_a == "#" or level_b == "#":
            return True
        if level_a is None or level_b is None:
            return False
        if level_a != level_b and level_a != "+" and level_b != "+":
            return False
    return True


def _levels(topic_filter: str) -> list[str]:
    # Elsewhere # also matches its parent level. These two filters have no parent, since no topic is empty
    # [MQTT-4.7.3-1], so they need one level more.
    if topic_filter in ("#", "/#"):
        topic_filter = topic_filter.replace("#", "+/#")
    return topic_filter.split("/")


def _are_apart_by_dollar(wild: str, named: str) -> bool:
    # [MQTT-4.7.2-1]: a filter that begins with a wildcard matches no topic that begins with $.
    return wild[0] in "+#" and named[0] == "$"


def _flaw(text: str) -> str:
    """Why the text is neither a valid name nor a valid filter; empty if it may be one."""
    if not text:
        return "is empty"  # [MQTT-4.7.3-1]
    if "\0" in text:
        return "contains U+0000"  # [MQTT-4.7.3-2]
    try:
        size = len(text) if text.isascii() else len(text.encode())
    except UnicodeEncodeError:
        return "contains a lone surrogate"  # [MQTT-1.5.4-1]
    return f"has more than {TOPIC_BYTES_MAX} bytes" if size > TOPIC_BYTES_MAX else ""  # [MQTT-4.7.3-3]


def _invalid_name(detail: str) -> ProtocolViolation:
    return ProtocolViolation(Reason.TOPIC_NAME_INVALID, detail)


def _invalid_filter(detail: str) -> ProtocolViolation:
    return ProtocolViolation(Reason.TOPIC_FILTER_INVALID, detail)
