"""How topics become parts of keys: the contract and its two implementations."""

from __future__ import annotations

from collections.abc import Iterable

from braidmq.base.errors import UsageError
from braidmq.storage.layouts.contract import Layout, Query, Row, index_of
from braidmq.storage.layouts.hashed import HashedLayout
from braidmq.storage.layouts.learned import LearnedLayout

__all__ = ["HashedLayout", "LearnedLayout", "Layout", "Query", "Row", "index_of", "make_layout"]

_LAYOUTS: dict[str, type[HashedLayout] | type[LearnedLayout]] = {each.name: each for each in (HashedLayout, LearnedLayout)}


def make_layout(name: str, parameters: bytes = b"", rows: Iterable[Row] = (), next_id: int = 0) -> Layout:
    """Restore a layout from its stored state; with only a name, create one with default parameters."""
    layout = _LAYOUTS.get(name)
    if layout is None:
        raise UsageError(f"there is no layout {name!r}", f"use one of {', '.join(_LAYOUTS)}")
    return layout.from_parameters(parameters, rows, next_id)
