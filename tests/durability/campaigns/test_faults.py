"""Faults of the disk and of the process under a whole node: a clear message, and nothing lost that was acknowledged."""

from __future__ import annotations

import contextlib
import os
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from braidmq.mqtt.packets import MQTT5, MQTT311, Puback, Publish
from braidmq.mqtt.reasons import Reason
from tests.durability.campaigns import power
from tests.durability.campaigns.node import client, kill, log_dir, read_log, start, stop, write_config
from tests.support.clients.wire import Closed, Wire
from tests.support.started import try_start

MIB = 1024 * 1024
DEADLINE_S = 20.0


def numbered(count: int) -> list[bytes]:
    """Payloads that tell themselves apart."""
    return [b"%06d" % number for number in range(count)]


def payloads_in(file: Path, topic_filter: str = "#") -> list[bytes]:
    """What is in the log of a node that is down."""
    return [record.payload for record in read_log(file, topic_filter)]


def publish_and_kill(file: Path, payloads: list[bytes], acknowledged: int) -> list[bytes]:
    """Send all at once, kill the node after so many acknowledgements, and give what it had acknowledged by then."""
    with start(file) as node:
        wire = client(node.await_port())
        wire.send(*(Publish("t", payload, 1, packet_id=number) for number, payload in enumerate(payloads, 1)))
        known = [wire.receive(Puback).packet_id for _ in range(acknowledged)]
        kill(node)
        with contextlib.suppress(Closed):
            while True:  # what was under way
                known.append(wire.receive(Puback).packet_id)
        wire.close()
    return payloads[: max(known)]


@pytest.mark.row("D2")
@pytest.mark.parametrize("damage", ["cut", "zeros"])
def test_a_power_loss_loses_nothing_that_was_acknowledged(tmp_path: Path, damage: str) -> None:
    file = write_config(tmp_path, mqtt={"receive_maximum": 65535})
    payloads = numbered(5000)
    acknowledged = publish_and_kill(file, payloads, 700)

    journal = power.newest_log(log_dir(file))
    length, synced = journal.stat().st_size, power.synced_bytes(journal)
    os.truncate(journal, synced)
    if damage == "zeros":
        os.truncate(journal, length)

    with start(file) as node:
        node.await_port()
        stop(node)
    found = payloads_in(file)
    assert found == payloads[: len(found)]
    assert len(found) >= len(acknowledged) >= 700


@pytest.mark.row("D3")
def test_a_flipped_bit_in_the_write_ahead_log_stops_the_start_with_a_message_and_changes_nothing(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    publish_and_kill(file, numbered(400), 400)
    journal = power.newest_log(log_dir(file))
    flip_bit(journal, journal.stat().st_size // 2)
    before = journal.read_bytes()

    refused = try_start(file)

    assert refused.returncode != 0
    assert "is damaged and was not changed" in refused.stderr
    assert "data/log" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert journal.read_bytes() == before


def flip_bit(file: Path, offset: int) -> None:
    with file.open("r+b") as stream:
        stream.seek(offset)
        byte = stream.read(1)[0]
        stream.seek(offset)
        stream.write(bytes([byte ^ 0x10]))


@pytest.mark.row("D4")
def test_a_flipped_bit_in_a_table_is_found_and_told_and_no_wrong_answer_is_given(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    noise = random.Random(5)
    payloads = [b"%06d " % number + noise.randbytes(1000) for number in range(400)]
    publish_and_kill(file, payloads, 400)
    with start(file) as node:  # brings what was in the write-ahead log into tables
        node.await_port()
        stop(node)
    table = max(log_dir(file).glob("*.sst"), key=lambda each: each.stat().st_size)
    flip_bit(table, table.stat().st_size // 3)

    with start(file) as node:
        port = node.await_port()
        reader = client(port, receive_maximum=65535)
        reader.subscribe("$replay/earliest/#")
        node.await_line("damaged")
        found = [packet.payload for packet in reader.drain_or_closed() if isinstance(packet, Publish)]

        # Whoever does not ask for what is damaged goes on.
        assert client(port).publish("u", b"x", 1) < 0x80

    assert found == payloads[: len(found)]
    assert len(found) < len(payloads)


@pytest.mark.row("D5")
def test_a_second_node_on_the_same_directory_is_rejected_with_a_message_and_the_first_continues(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    with start(file) as node:
        wire = client(node.await_port())

        refused = try_start(file)

        assert refused.returncode != 0
        assert "data" in refused.stderr
        assert "in use" in refused.stderr or "runs already" in refused.stderr
        assert "Traceback" not in refused.stderr
        assert wire.publish("t", b"x", 1) < 0x80
        kill(node)

    # What a killed node leaves behind keeps nobody out.
    with start(file) as node:
        node.await_port()
        stop(node)
    assert payloads_in(file) == [b"x"]


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A file system in memory that is large enough for a node, and can be filled; its tests need the mark ``tmpfs``."""
    place = tmp_path / "data"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=900m", "tmpfs", str(place)], check=True)
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.row("D6")
@pytest.mark.needs("tmpfs")
def test_a_directory_that_cannot_be_written_stops_the_start_with_a_message(tmp_path: Path, disk: Path) -> None:
    file = write_config(tmp_path)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)

    refused = try_start(file)

    assert refused.returncode != 0
    assert "node.data_dir" in refused.stderr
    assert "Traceback" not in refused.stderr


def publish_until(wire: Wire, wanted: int, kept: list[bytes], qos: int = 1) -> None:
    """Publish until the answer is this one; what was accepted is added to ``kept``."""
    deadline = time.monotonic() + DEADLINE_S
    for number in range(1_000_000):
        payload = b"%d %d" % (wanted, number)
        answer = wire.publish("t", payload, qos)
        if answer < 0x80:
            kept.append(payload)
        if answer == wanted or (wanted == 0 and answer < 0x80):
            return
        assert time.monotonic() < deadline, f"PUBLISH is still answered with 0x{answer:02X}"


@pytest.mark.row("D7")
@pytest.mark.needs("tmpfs")
def test_a_full_disk_ends_acknowledgements_with_0x97_until_there_is_space_again(tmp_path: Path, disk: Path) -> None:
    file = write_config(tmp_path)
    kept: list[bytes] = []
    with start(file) as node:
        port = node.await_port()
        wire = client(port, MQTT5)
        publish_until(wire, Reason.SUCCESS, kept)

        with (disk / "ballast").open("wb") as ballast:
            os.posix_fallocate(ballast.fileno(), 0, 600 * MIB)
        publish_until(wire, Reason.QUOTA_EXCEEDED, kept)

        node.await_line("MiB left")
        assert wire.publish("t", b"qos 2", 2) == Reason.QUOTA_EXCEEDED
        old = client(port, MQTT311)
        old.send(Publish("t", b"3.1.1", 1, packet_id=1))
        old.expect_closed()
        # Only what is recorded is refused.
        wire.subscribe("t")
        assert wire.publish("unrecorded", b"", 0) == 0

        (disk / "ballast").unlink()
        publish_until(client(port, MQTT5), Reason.SUCCESS, kept)
        node.await_line("has space again")
        assert client(port, MQTT311).publish("t", b"again", 1) == 0
        kill(node)

    with start(file) as node:
        node.await_port()
        stop(node)
    assert payloads_in(file) == [*kept, b"again"]


@pytest.mark.row("D7")
@pytest.mark.needs("tmpfs")
def test_a_node_whose_disk_is_full_to_the_last_byte_recovers_with_space_and_has_everything_acknowledged(
    tmp_path: Path, disk: Path
) -> None:
    """Another program fills it while messages arrive: the storage engine itself runs into the end of the disk."""
    file = write_config(tmp_path)
    noise = random.Random(9)
    kept: list[bytes] = []
    with start(file) as node:
        wire = client(node.await_port())
        for round_ in range(2):
            fill(disk / "ballast")
            # More than is left in the blocks of the log file that are there already.
            answers = [publish_noise(wire, noise, kept) for _ in range(20)]
            assert answers[-1] == Reason.QUOTA_EXCEEDED, round_

            (disk / "ballast").unlink()
            publish_until(wire, Reason.SUCCESS, kept)
            # What the engine writes in the background works again, too.
            for _ in range(60):
                assert publish_noise(wire, noise, kept) < 0x80
        kill(node)

    with start(file) as node:
        node.await_port()
        stop(node)
    assert payloads_in(file) == kept


def fill(file: Path) -> None:
    """Take all that is left of a disk."""
    with file.open("wb") as ballast, contextlib.suppress(OSError):
        size = MIB
        while True:
            os.posix_fallocate(ballast.fileno(), 0, size)
            numbers = os.statvfs(file)
            size += max(numbers.f_bavail * numbers.f_frsize, 4096)


def publish_noise(wire: Wire, noise: random.Random, kept: list[bytes]) -> int:
    """Publish 800 kB that no compression makes smaller."""
    payload = noise.randbytes(800_000)
    answer = wire.publish("t", payload, 1)
    if answer < 0x80:
        kept.append(payload)
    return answer


@pytest.mark.row("D8")
def test_a_message_larger_than_an_epoch_and_a_memtable_is_kept(tmp_path: Path) -> None:
    file = write_config(tmp_path, mqtt={"packet_bytes_max": "80MiB"})
    large = random.Random(3).randbytes(40 * MIB)
    with start(file) as node:
        wire = client(node.await_port())
        assert wire.publish("small", b"before", 1) < 0x80
        assert wire.publish("large", large, 1) < 0x80
        assert wire.publish("small", b"after", 1) < 0x80
        kill(node)

    with start(file) as node:
        node.await_port()
        stop(node)
    assert [record.topic for record in read_log(file)] == [b"small", b"large", b"small"]
    assert payloads_in(file, "large") == [large]


@pytest.mark.row("D8")
def test_a_message_that_no_record_can_hold_is_rejected_and_harms_no_other_client(tmp_path: Path) -> None:
    file = write_config(tmp_path, mqtt={"packet_bytes_max": "80MiB"})
    with start(file) as node:
        port = node.await_port()
        wire = client(port)

        assert wire.publish("huge", bytes(65 * MIB), 1) >= 0x80

        assert wire.publish("small", b"after", 1) < 0x80
        assert client(port).publish("small", b"other", 1) < 0x80
        stop(node)
    assert sorted(payloads_in(file)) == [b"after", b"other"]


@pytest.mark.row("D2")
def test_retained_and_delayed_messages_and_subscriptions_outlive_losing_power(tmp_path: Path) -> None:
    file = write_config(tmp_path)
    with start(file) as node:
        port = node.await_port()
        waiting = client(port, client_id="waiting", persistent=True)
        waiting.subscribe("news/#", qos=1)
        waiting.close()
        wire = client(port)
        assert wire.publish("kept", b"retained", 1, retain=True) < 0x80
        assert wire.publish("gone", b"retained", 1, retain=True) < 0x80
        assert wire.publish("gone", b"", 1, retain=True) < 0x80
        assert wire.publish("$delayed/2/news/late", b"delayed", 1) < 0x80
        assert wire.publish("news/now", b"now", 1) < 0x80
        kill(node)
    journal = power.newest_log(log_dir(file))
    os.truncate(journal, power.synced_bytes(journal))

    with start(file) as node:
        port = node.await_port()
        waiting = client(port, client_id="waiting", persistent=True, clean_start=False)
        assert waiting.connack.session_present
        assert [waiting.receive_publish().payload for _ in range(2)] == [b"now", b"delayed"]
        wire = client(port)
        wire.subscribe("kept", "gone", qos=1)
        assert wire.receive_publish().payload == b"retained"
        wire.expect_silence()
        stop(node)
