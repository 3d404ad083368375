"""Version 1 of the calls about retained messages: a node's, at each core, for a new subscription. As in `proto_v1`, nothing here
changes once a release has it.
"""

from __future__ import annotations

import msgspec


class _RetainedMessage(msgspec.Struct, frozen=True, tag=True, array_like=True, gc=False):
    """A call or an answer."""


class RetainedFilters(_RetainedMessage, frozen=True):
    """Asks which of these filters have retained messages; most have none. ``is_for_intents``: see `RetainedRead`."""

    topic_filters: list[bytes]
    is_for_intents: bool = False


class RetainedMatches(_RetainedMessage, frozen=True):
    """The places in the question, from 0, of filters that may have some."""

    places: list[int]


class RetainedRead(_RetainedMessage, frozen=True):
    """Asks for a page of the retained messages that match a filter. ``number``: of the search, from the node's own count.

    ``page``: how many pages of the search the node has. ``is_for_intents``: of those that are on their way from this core to the
    homes of their topics, which come later.
    """

    number: int
    topic_filter: bytes
    page: int
    is_for_intents: bool = False


class RetainedPage(_RetainedMessage, frozen=True):
    """Retained messages as the values of their rows. ``is_part``: the last value goes on in the next page."""

    values: list[bytes]
    is_last: bool
    is_part: bool = False
