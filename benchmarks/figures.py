"""A measured value and its target."""

from __future__ import annotations

import msgspec


class Figure(msgspec.Struct):
    """``found`` and ``target`` are text with units; without a target, nothing can be missed."""

    title: str
    found: str
    target: str = ""
    is_met: bool = True


def show_rate(per_s: float) -> str:
    """A rate with about three digits."""
    return f"{per_s / 1e6:.2f} M/s" if per_s >= 1e6 else f"{per_s / 1e3:.0f} k/s" if per_s >= 1e4 else f"{per_s:,.0f}/s"


def show_share(per_s: float, bare_per_s: float, what: str = "bare") -> str:
    """A rate and its share of another one, by default that of the bare engine."""
    return f"{show_rate(per_s)}, {per_s / bare_per_s:.0%} of {show_rate(bare_per_s)} {what}"
