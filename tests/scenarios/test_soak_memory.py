"""The broker leaks nothing: after a storm of packets and clients, objects and memory are as before."""

from __future__ import annotations

import gc
import os
import time
from collections import Counter
from collections.abc import Callable

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311
from tests.support.chaos import Chaos
from tests.support.clients import raw
from tests.support.clients.wire import unique
from tests.support.present import present
from tests.support.stage import Stage, resident_bytes, wait_until

MIB = 1024 * 1024
SEED = int(os.environ.get("BRAIDMQ_SOAK_SEED", "20240229"))
SOAK_S = float(os.environ.get("BRAIDMQ_SOAK_SECONDS", "300"))

# What a log may hold of its newest records, and of what it has not written out yet.
LOG_BYTES = 192 * MIB
# Sessions that clients leave behind are over one second later.
SHORT_LIVED = {"session": {"expiry_max": "1s", "expiry_mqtt3": "1s"}}

# What is made once stays: an open epoch in each shard, for example. After so many actions everything has been made; half a second
# is not enough for them when the machine is busy.
WARM_UP = 2000


def our_objects(stage: Stage) -> Counter[str]:
    """How many objects there are of each class that has to do with clients.

    They are counted on the broker's loop: from another thread, the locals of what the loop is doing would count as well, such as
    the batch of a write that waits for the disk.
    """
    return stage.look(lambda _: count_objects())


def count_objects() -> Counter[str]:
    gc.collect()
    classes = Counter(type(each) for each in gc.get_objects())
    return Counter({kind.__qualname__: count for kind, count in classes.items() if str(kind.__module__).startswith("braidmq.")})


def grown_since(stage: Stage, before: Counter[str]) -> dict[str, int]:
    """Classes with more objects than before; other tests of this process may have left some that go away by themselves.

    What the log has learned of the topics stays, and is bounded by its thresholds; its newest records are bounded by bytes.
    """
    grown = our_objects(stage) - before
    del grown["PatternNode"], grown["TailBlock"]
    return dict(grown)


def state_of(stage: Stage) -> dict[str, int]:
    """The sizes of everything in a broker that grows with its clients."""
    return dict(
        stage.look(
            lambda inside: {
                "connections": len(inside.connections),
                "sessions": len(inside.sessions),
                "subscriptions": inside.routes.count,
                "groups": len(inside.groups),
                "exclusive": len(inside.exclusive),
                "delayed": len(inside.delayed),
                "queued": inside.state.queued_messages,
                "queued bytes": inside.state.queued_bytes,
                "not yet on disk": present(stage.broker.node).log.pending_bytes,
                "authenticating": inside.statistics.authenticating,
                "live": inside.statistics.live,
            }
        )
    )


def wait_for_tick(stage: Stage) -> None:
    """Return after the broker's next tick."""
    ticked_at = stage.look(lambda inside: inside.timers.beaten_at)
    wait_until(lambda: stage.look(lambda inside: inside.timers.beaten_at) != ticked_at, "the broker ticks")


def settle(stage: Stage) -> None:
    """Wait until everything that clients left behind is over, and forget what is only remembered for speed.

    A session or group that was to be written at the next tick is in a list until then, also when it ends before.
    """
    stage.wait_empty()
    wait_until(lambda: not any(state_of(stage).values()), "nothing is left of the clients", 10)
    wait_for_tick(stage)
    wait_until(lambda: not any(state_of(stage).values()), "what the tick wrote is on disk")
    stage.look(lambda inside: inside.routes.refresh())
    stage.look(lambda inside: [inside.retained.remove(topic) for topic in list(inside.retained.topics())])


def storm(stage: Stage, seed: int, seconds: float, actions_min: int = WARM_UP) -> int:
    """Let chaos reign for so long, and longer until so much was done; then wait for silence. Returns how much was done."""
    chaos = Chaos(stage.broker.host, stage.broker.port, stage.broker.ports["ws:default"], seed)
    try:
        chaos.run(seconds, actions_min)
    finally:
        chaos.close()
    settle(stage)
    return chaos.actions


@pytest.mark.row("N1", "N2")
def test_a_short_storm_of_valid_and_invalid_packets_leaks_nothing(start: Callable[..., Stage]) -> None:
    stage = start(**SHORT_LIVED)
    storm(stage, SEED, 0.5)
    objects, memory = our_objects(stage), resident_bytes()

    storm(stage, SEED + 1, 2.5)

    assert grown_since(stage, objects) == {}
    assert resident_bytes() - memory < 24 * MIB


@pytest.mark.soak
@pytest.mark.row("N1", "N2")
def test_a_long_storm_of_valid_and_invalid_packets_leaks_nothing(start: Callable[..., Stage]) -> None:
    stage = start(**SHORT_LIVED)
    rounds, began = 0, time.monotonic()
    storm(stage, SEED, 10.0)
    objects, memory = our_objects(stage), [resident_bytes()]

    while time.monotonic() - began < SOAK_S:
        rounds += 1
        actions = storm(stage, SEED + rounds, 10.0)
        memory.append(resident_bytes())
        print(f"round {rounds}: {actions} actions, {memory[-1] / MIB:.1f} MiB")
        assert grown_since(stage, objects) == {}

    # What is lost in each round would show more the longer it goes on; the allocator's own needs do not. What the log has not
    # written out yet goes up and down, so that the peaks are compared.
    half = len(memory) // 2
    assert max(memory[half:]) - max(memory[:half]) < 16 * MIB
    assert memory[-1] - memory[0] < 48 * MIB + LOG_BYTES


CHURN: dict[str, Callable[[], bytes]] = {
    "nothing": lambda: b"",
    "half a connect": lambda: raw.connect(MQTT5, client_id=unique())[:10],
    "a refused connect": lambda: raw.connect(MQTT311, level=9),
    "a malformed connect": lambda: raw.connect(MQTT5, flags=0x03),
    "a clean session": lambda: raw.connect(MQTT311, client_id=unique()) + raw.subscribe(MQTT311, ("t", 2), ("+/x/#", 1)),
    "a violation": lambda: raw.connect(MQTT5, client_id=unique()) + raw.subscribe(MQTT5, ("t", 1)) + b"\xd0\x00",
    "a will": lambda: raw.connect(MQTT5, client_id=unique(), flags=0x06, rest=raw.will(MQTT5, "w", b"x" * 100)),
    "qos 2 without an end": lambda: (
        raw.connect(MQTT5, client_id=unique())
        + raw.subscribe(MQTT5, ("t", 2))
        + b"".join(raw.publish(MQTT5, "t", b"x" * 1000, flags=4, packet_id=number) for number in range(1, 10))
    ),
    "aliases": lambda: raw.connect(MQTT5, client_id=unique()) + raw.publish(MQTT5, unique(), props=b"\x23\x00\x01"),
    "an unknown method": lambda: raw.connect(MQTT5, client_id=unique(), props=b"\x15" + raw.text("NONE")),
    "a lasting session": lambda: (
        raw.connect(MQTT5, client_id=unique(), props=b"\x11\x00\x00\x00\x01") + raw.subscribe(MQTT5, ("$share/g/t", 1))
    ),
}


@pytest.mark.row("N2")
def test_clients_that_connect_and_disconnect_leak_nothing(start: Callable[..., Stage]) -> None:
    stage = start(**SHORT_LIVED)

    def churn(times: int) -> None:
        for make in CHURN.values():
            for number in range(times):
                wire = stage.open()
                wire.send(make())
                if number % 2:
                    wire.close()  # the others are closed all together, when the broker has answered
        stage.wires.close()
        settle(stage)

    churn(20)
    objects, memory = our_objects(stage), resident_bytes()

    churn(100)

    assert grown_since(stage, objects) == {}
    assert resident_bytes() - memory < 16 * MIB
