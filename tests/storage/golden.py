"""The bytes that were released, written down by hand."""

from __future__ import annotations

from pathlib import Path


def golden(section: str) -> dict[str, bytes]:
    """The named bytes of one section of the file; a name with + goes on with the one above."""
    found: dict[str, bytes] = {}
    current = ""
    for line in Path(__file__).parent.parent.joinpath("golden", "storage_v1.txt").read_text().splitlines():
        if line.startswith("["):
            current = line.strip("[]")
        elif line and not line.startswith("#") and current == section:
            name, digits = line.split(None, 1)
            name = name.removesuffix("+")
            found[name] = found.get(name, b"") + bytes.fromhex(digits)
    return found
