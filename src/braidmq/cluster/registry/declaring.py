"""Declarations in parts: that of a node with very many clients does not fit into a frame."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final

from msgspec.structs import replace

from braidmq.net.proto_v1_claims import ClaimId, Declare, DeclaredChannel, DeclarePart, EndedChannel

PART_BYTES: Final = 512 * 1024  # of what is declared, without what a message adds
_ITEM_BYTES: Final = 100  # more than the numbers of an item take

_Item = DeclaredChannel | ClaimId | EndedChannel


def parts_of(declare: Declare) -> tuple[list[DeclarePart], Declare]:
    """What has to be sent before the call, and the call."""
    pages = list(_pages(chain(declare.channels, declare.claims, declare.ended)))
    if len(pages) <= 1:
        return [], declare
    return [_part(page) for page in pages], replace(declare, channels=[], claims=[], ended=[])


def _pages(items: Iterator[_Item]) -> Iterator[list[_Item]]:
    page: list[_Item] = []
    size = 0
    for item in items:
        page.append(item)
        will = b"" if isinstance(item, EndedChannel) else item.will
        size += _ITEM_BYTES + 4 * len(item.client_id) + len(will)  # a character has at most four bytes
        if size >= PART_BYTES:
            yield page
            page, size = [], 0
    if page:
        yield page


def _part(items: Sequence[_Item]) -> DeclarePart:
    return DeclarePart(
        [each for each in items if isinstance(each, DeclaredChannel)],
        [each for each in items if isinstance(each, ClaimId)],
        [each for each in items if isinstance(each, EndedChannel)],
    )


def whole(parts: Sequence[DeclarePart], declare: Declare) -> Declare:
    """The declaration."""
    if not parts:
        return declare
    return replace(
        declare,
        channels=[*(each for part in parts for each in part.channels), *declare.channels],
        claims=[*(each for part in parts for each in part.claims), *declare.claims],
        ended=[*(each for part in parts for each in part.ended), *declare.ended],
    )
