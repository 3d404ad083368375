"""The normative statements of MQTT 3.1.1 and 5.0, and the decorator by which a test says which of them it shows.

``statements-5.0.txt`` and ``statements-3.1.1.txt`` have one line for each: number, whom it binds (S server, C client, B both),
what it says in our words, and, for one that no test here shows, why.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import pytest

HERE = Path(__file__).parent
SPECIFICATIONS = {"3.1.1": 4, "5.0": 5}
_FOR_CLIENTS = "binds the client; nothing for a server to answer"


class Statement(NamedTuple):
    """One numbered statement. ``reason`` says why no socket test shows it, and is empty when one must."""

    specification: str
    number: str
    binds: str
    meaning: str
    reason: str

    @property
    def key(self) -> str:
        """How ``shows`` names it."""
        return f"{self.specification}: {self.number}"


def load_statements() -> dict[str, Statement]:
    """All statements by key, in the order of the specifications."""
    statements: dict[str, Statement] = {}
    for specification in SPECIFICATIONS:
        for line in (HERE / f"statements-{specification}.txt").read_text().splitlines():
            if not line or line.startswith("#"):
                continue
            number, binds, meaning, reason = (cell.strip() for cell in line.split("|"))
            if reason == "client":
                reason = _FOR_CLIENTS
            statement = Statement(specification, f"MQTT-{number}", binds, meaning, reason)
            assert statement.key not in statements, f"{statement.key} is listed twice"
            statements[statement.key] = statement
    return statements


_STATEMENTS = load_statements()


def shows(*keys: str) -> pytest.MarkDecorator:
    """The test shows these statements, ``"5.0: MQTT-3.1.2-22"``; if it takes ``version`` it runs once for each specification named."""
    unknown = [key for key in keys if key not in _STATEMENTS]
    assert not unknown, f"no such statement: {', '.join(unknown)}"
    return pytest.mark.shows(*keys)
