"""A member of the cluster in one of its lives."""

from __future__ import annotations

from typing import NamedTuple


class Member(NamedTuple):
    """A node, from one start to its end: a node that starts again is another member."""

    name: str
    incarnation: int

    def __str__(self) -> str:
        return self.name
