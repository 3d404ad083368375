"""Sparkplug B payloads, built by hand after the specification's field numbers."""

from __future__ import annotations


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    parts = []
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*parts, value])


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def data(field: int, value: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(value)) + value


def metric(name: bytes, datatype: int, value: bytes) -> bytes:
    return data(2, data(1, name) + number(4, datatype) + value)
