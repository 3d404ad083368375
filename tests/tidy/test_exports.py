"""The names that users import. They stay where they are when the tree behind them changes."""

from __future__ import annotations

import importlib

import pytest

PUBLIC = {
    "braidmq.flight": {"connect"},
    "braidmq.hooks": {"Client", "Credentials", "Granted", "Hook", "Message", "Reason", "Refused", "Verdict"},
    "braidmq.spark": {"BraidDataSource", "register"},
    "braidmq.testing": {"Broker", "braidmq_broker"},
    "pyspark_braidmq": {"DefaultSource"},
}


@pytest.mark.parametrize("module", PUBLIC)
def test_a_public_module_exports_what_users_import_from_it_and_nothing_else(module: str) -> None:
    exported = importlib.import_module(module)

    assert set(exported.__all__) == PUBLIC[module]
    assert all(hasattr(exported, name) for name in exported.__all__)
