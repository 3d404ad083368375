"""The decorator by which a test says which normative statements it shows."""

from __future__ import annotations

import pytest

from scripts.conformance_table import load_statements

_STATEMENTS = load_statements()


def shows(*keys: str) -> pytest.MarkDecorator:
    """The test shows these statements, as ``"5.0: MQTT-3.1.2-22"``; ``version`` runs over the specifications that are named."""
    unknown = [key for key in keys if key not in _STATEMENTS]
    assert not unknown, f"no such statement: {', '.join(unknown)}"
    return pytest.mark.shows(*keys)
