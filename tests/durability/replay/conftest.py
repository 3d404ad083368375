"""Brokers for the tests of replays; those of the scenarios."""

from __future__ import annotations

from tests.scenarios.conftest import plain_broker, stage, start

__all__ = ["plain_broker", "stage", "start"]
