"""How topics become parts of keys: the contract, and the two layouts that keep it."""

from __future__ import annotations

from collections.abc import Iterable

from braidmq.base.errors import UsageError
from braidmq.storage.layouts.contract import Layout, Query, Row, index_of
from braidmq.storage.layouts.hashed import HashedLayout
from braidmq.storage.layouts.learned import LearnedLayout

__all__ = ["HashedLayout", "LearnedLayout", "Layout", "Query", "Row", "index_of", "make_layout"]

_LAYOUTS: dict[str, type[HashedLayout] | type[LearnedLayout]] = {each.name: each for each in (HashedLayout, LearnedLayout)}


def make_layout(name: str, parameters: bytes = b"", rows: Iterable[Row] = (), next_id: int = 0) -> Layout:
    """The layout made from what was stored of it; from nothing but its name, a new one with the default parameters."""
    layout = _LAYOUTS.get(name)
    if layout is None:
        raise UsageError(f"there is no layout {name!r}", f"it is one of {', '.join(_LAYOUTS)}")
    return layout.from_parameters(parameters, rows, next_id)
