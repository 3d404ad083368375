"""One measured thing beside what is asked of it."""

from __future__ import annotations

import msgspec


class Figure(msgspec.Struct):
    """``found`` and ``target`` are words with their units; no target: nothing is asked, and nothing can be missed."""

    title: str
    found: str
    target: str = ""
    is_met: bool = True


def show_rate(per_s: float) -> str:
    """A rate with three digits or so."""
    return f"{per_s / 1e6:.2f} M/s" if per_s >= 1e6 else f"{per_s / 1e3:.0f} k/s" if per_s >= 1e4 else f"{per_s:,.0f}/s"


def show_share(per_s: float, bare_per_s: float, what: str = "bare") -> str:
    """A rate and its share of another, which is that of the bare engine if nothing else is said."""
    return f"{show_rate(per_s)}, {per_s / bare_per_s:.0%} of {show_rate(bare_per_s)} {what}"
