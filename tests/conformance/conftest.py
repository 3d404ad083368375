"""Brokers and connections for the conformance tests.

The whole suite can be pointed at any broker: ``BRAIDMQ_TEST_PORT=1883 pytest tests/conformance``. What needs a broker with
settings of its own is then skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import pytest

from braidmq.access import hashes
from braidmq.access.scram import format_keys, make_keys
from braidmq.mqtt.packets import MQTT5, MQTT311
from braidmq.testing import Broker
from tests.support.clients.wire import Wires, unique

VERSIONS = {"3.1.1": MQTT311, "5.0": MQTT5}
FOREIGN_PORT = "BRAIDMQ_TEST_PORT"
FOREIGN_WS_PORT = "BRAIDMQ_TEST_WS_PORT"


class Address(NamedTuple):
    """Where a broker listens for MQTT and for MQTT over WebSocket."""

    host: str
    port: int
    ws_port: int | None


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "shows(*statements): the normative statements that the test shows")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test that takes ``version`` for each specification whose statements it shows."""
    if "version" in metafunc.fixturenames:
        named = {key.split(":")[0] for marker in metafunc.definition.iter_markers("shows") for key in marker.args}
        chosen = [name for name in VERSIONS if name in named]
        metafunc.parametrize("version", [VERSIONS[name] for name in chosen], ids=[f"v{name}" for name in chosen])


class Brokers:
    """Starts each kind of broker once, when the first test asks for it."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._running: dict[str, Address] = {}

    def get(self, name: str, **tables: Any) -> Address:
        """The running broker of this name, started with these settings."""
        if name not in self._running:
            broker = self._stack.enter_context(Broker(**tables))
            self._running[name] = Address(broker.host, broker.port, broker.ports["ws:default"])
        return self._running[name]

    def special(self, name: str, **tables: Any) -> Address:
        """Like ``get``, for settings that a broker named by the environment cannot be expected to have."""
        if os.environ.get(FOREIGN_PORT):
            pytest.skip(f"needs a broker with settings of its own, and {FOREIGN_PORT} names another")
        return self.get(name, **tables)

    def close(self) -> None:
        """Stop them all."""
        self._stack.close()


@pytest.fixture(scope="session")
def brokers() -> Iterator[Brokers]:
    brokers = Brokers()
    yield brokers
    brokers.close()


@pytest.fixture(scope="session")
def broker(brokers: Brokers) -> Address:
    """A broker with default settings, or the one that the environment names."""
    if port := os.environ.get(FOREIGN_PORT):
        ws_port = os.environ.get(FOREIGN_WS_PORT)
        return Address("127.0.0.1", int(port), int(ws_port) if ws_port else None)
    # Tests of "$" topics look at what the broker publishes itself.
    return brokers.get("default", sys={"interval": 1})


@pytest.fixture
def connect(broker: Address, version: int) -> Iterator[Wires]:
    """Opens clients of the version under test on the default broker."""
    wires = Wires(broker.host, broker.port, version)
    yield wires
    wires.close()


@pytest.fixture(scope="session")
def small_broker(brokers: Brokers) -> Address:
    """A broker with low limits, which it announces: packets of 1 KiB, 5 in flight, no alias, keep alive 1 s, expiry 30 s."""
    return brokers.special(
        "small",
        mqtt={"packet_bytes_max": 1024, "receive_maximum": 5, "topic_alias_maximum": 0, "keep_alive_max": 1},
        session={"expiry_max": 30},
    )


@pytest.fixture
def connect_small(small_broker: Address, version: int) -> Iterator[Wires]:
    """Opens clients on the broker with low limits."""
    wires = Wires(small_broker.host, small_broker.port, version)
    yield wires
    wires.close()


@pytest.fixture(scope="session")
def guarded_broker(brokers: Brokers, tmp_path_factory: pytest.TempPathFactory) -> Address:
    """A broker that knows ada (password lovelace, also by SCRAM) and lets her at ``open/#`` alone."""
    directory = tmp_path_factory.mktemp("access")
    passwords, rules = directory / "passwords", directory / "rules"
    scram = format_keys(make_keys("lovelace"))
    passwords.write_text(f"ada:{hashes.make(b'lovelace')}\nada:{scram}\n")
    passwords.chmod(0o600)
    rules.write_text("user ada\ntopic readwrite open/#\n")
    rules.chmod(0o600)
    # The tests fail to log in more often than a broker would forgive.
    access = {"password_file": str(passwords), "acl_file": str(rules), "ban_failures": 0}
    return brokers.special("guarded", access=access)


@pytest.fixture
def connect_guarded(guarded_broker: Address, version: int) -> Iterator[Wires]:
    """Opens clients on the broker that asks for a password."""
    wires = Wires(guarded_broker.host, guarded_broker.port, version)
    yield wires
    wires.close()


@pytest.fixture
def connect_broken(brokers: Brokers, version: int) -> Iterator[Wires]:
    """Opens clients on a broker in which something fails for ``unlucky`` clients."""
    address = brokers.special("broken", hooks={"load": ["tests.conformance.broken_hook:BrokenHook"]})
    wires = Wires(address.host, address.port, version)
    yield wires
    wires.close()


@pytest.fixture
def topic() -> str:
    """A topic that no other test uses."""
    return unique("t/")
