"""Data directories that earlier versions have written are opened, and everything is there that was put into them.

What must be in them is said here, by hand, and not by the script that wrote them.
"""

from __future__ import annotations

import importlib.util
import zlib
from collections import Counter
from pathlib import Path
from types import ModuleType

import pytest

from braidmq.access import hashes
from braidmq.broker.ports import RELEASED, SENT, CursorRow, GroupRow, InFlight, SessionRow, SubscriptionRow
from braidmq.lane.records.records import Record
from braidmq.mqtt.codec import decode
from braidmq.mqtt.packets import Publish, Pubrel, Will
from braidmq.mqtt.properties import Properties
from braidmq.storage.rows.delayed import LogDelayed
from braidmq.storage.rows.groups import LogGroups
from braidmq.storage.rows.producers import LogProducers
from braidmq.storage.rows.retained import LogRetained
from braidmq.storage.rows.sessions import LogSessions
from braidmq.testing import Broker
from tests.durability.replay.asking import is_end
from tests.storage.message_log import Stage
from tests.support.clients.wire import Wire

BEGIN = 1_704_067_200_000_000
YEAR_2100_US = 4_102_444_800_000_000
TEMPERATURES = [(f"plant/{n % 3}/temp", n) for n in range(10, 24)] + [(f"plant/{n}/temp", n) for n in range(24, 54)]


def load_script() -> ModuleType:
    file = Path(__file__).parent.parent.parent / "scripts" / "keep_directory.py"
    spec = importlib.util.spec_from_file_location("keep_directory", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


script = load_script()
FILES: list[Path] = script.kept_files()


def at(step: int) -> int:
    """The timestamp of the record that was written in a step."""
    return BEGIN + step * 1_000_000


def home(client_id: str) -> int:
    return zlib.crc32(client_id.encode()) % 2


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def data_dir(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    script.unpack(request.param, tmp_path)
    return tmp_path


@pytest.fixture
def stage(data_dir: Path) -> Stage:
    return Stage(data_dir, shards=2)


def everything(stage: Stage, *filters: str, start: int = 0, with_session_only: bool = True) -> list[Record]:
    found = stage.read(*filters, start=start, with_session_only=with_session_only)
    for shard, record in found:
        assert shard == home(record.publisher)
    return [record for _, record in found]


def test_the_newest_kept_directory_has_the_current_formats() -> None:
    assert FILES, "python scripts/keep_directory.py makes the first"
    kept, now = script.kept_versions(FILES[-1]), script.versions()
    changed = sorted(name for name in kept.keys() | now.keys() if kept.get(name) != now.get(name))
    words = f"{', '.join(changed)}: other than in {FILES[-1].name}. Run python scripts/keep_directory.py, which keeps one more,"

    assert not changed, f"{words} and leave those that are there: what a release has written must always be read"


def test_a_raised_format_version_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("braidmq.storage.format.group_rows.VERSION", 99)

    with pytest.raises(AssertionError, match=r"format\.group_rows\.VERSION: other than in .* Run python scripts/keep_directory"):
        test_the_newest_kept_directory_has_the_current_formats()


def test_a_kept_directory_has_records_of_every_kind(stage: Stage) -> None:
    with stage:
        found = {record.timestamp: record for record in everything(stage, "#", "$own/#")}
        hidden = {record.timestamp for record in everything(stage, "#", with_session_only=False)}

    assert sorted(found) == [at(step) for step in range(1, 56)]
    assert sorted(hidden) == [at(step) for step in range(1, 56) if step not in (4, 8)]
    kinds = {
        step: (each.topic.decode(), each.payload, each.qos, each.retain, each.publisher)
        for step in (*range(1, 10), 54, 55)
        for each in [found[at(step)]]
    }
    assert kinds == {
        1: ("plain", b"", 0, False, "anna"),
        2: ("plain/ü/\U0001f600", b"\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff\x00\xff", 1, False, "bob"),
        3: ("kept", b"retained", 2, True, "anna"),
        4: ("kept", b"for sessions", 1, False, "bob"),
        5: ("expires", b"in 2100", 1, False, "anna"),
        6: ("elsewhere", b"published before", 1, False, "bob"),
        7: ("slow/a", b"of a class", 1, False, "anna"),
        8: ("$own/x", b"dollar", 1, False, "bob"),
        9: ("linked", b"sequence 41", 1, False, "link"),
        54: ("slow/b", b"of a class", 1, False, "bob"),
        55: ("plant/last", b"the end", 1, False, "anna"),
    }
    for topic, step in TEMPERATURES:
        each = found[at(step)]
        publisher = "anna" if step % 2 else "bob"
        assert (each.topic.decode(), each.payload, each.qos, each.publisher) == (topic, b"%d" % step, 1, publisher)
    expiring = found[at(5)]
    assert (expiring.expires_at, expiring.properties, expiring.expiry_offset) == (YEAR_2100_US, bytes.fromhex("0200015180"), 1)
    assert [step for step in range(1, 56) if found[at(step)].session_only] == [4]
    assert found[at(6)].published_at == at(0)


@pytest.mark.parametrize("topic_filter", ["plant/+/temp", "plant/#", "plant/1/temp", "plant/40/temp", "+/2/+"])
@pytest.mark.parametrize("begin", [0, 22, 40])
def test_a_filter_finds_its_records_across_generations_from_any_time(stage: Stage, topic_filter: str, begin: int) -> None:
    wanted = {
        "plant/+/temp": TEMPERATURES,
        "plant/#": [*TEMPERATURES, ("plant/last", 55)],
        "plant/1/temp": [("plant/1/temp", step) for step in (10, 13, 16, 19, 22)],
        "plant/40/temp": [("plant/40/temp", 40)],
        "+/2/+": [("plant/2/temp", step) for step in (11, 14, 17, 20, 23)],
    }[topic_filter]

    with stage:
        found = [(each.topic.decode(), each.timestamp) for each in everything(stage, topic_filter, start=at(begin))]

    assert found == [(topic, at(step)) for topic, step in wanted if step > begin]


def test_a_kept_directory_has_generations_of_both_layouts(stage: Stage) -> None:
    with stage:
        generations = [(each.shard, each.log_class, each.number, each.layout, each.records) for each in stage.log.generations()]
        stats = stage.log.stats()
    publishers = {step: "anna" if step % 2 else "bob" for step in range(1, 56)} | {9: "link", 54: "bob"}
    slow = {7, 54}

    def count(shard: int, steps: set[int]) -> int:
        return sum(home(publishers[step]) == shard for step in steps)

    hashed, learned = set(range(1, 24)), set(range(24, 56))
    for shard in (0, 1):
        assert (shard, "", 1, "hashed", count(shard, hashed - slow)) in generations
        assert (shard, "", 2, "learned", count(shard, learned - slow)) in generations
    of_class = [(layout, records) for _, log_class, _, layout, records in generations if log_class == "slow"]
    assert sum(records for layout, records in of_class if layout == "hashed") == 1
    assert sum(records for layout, records in of_class if layout == "learned") == 1
    assert stats.records == 55
    assert list(stats.classes) == ["slow"]


def test_a_kept_directory_has_its_sessions(stage: Stage) -> None:
    with stage:
        sessions = {each.session.client_id: each for each in LogSessions(stage.log).load()}

    start = (at(20), at(20))
    assert sorted(sessions) == ["plain", "reader"]
    reader, plain = sessions["reader"], sessions["plain"]
    assert reader.session == SessionRow("reader", "user r", 0xFFFFFFFF, False, 1_700_000_000.5, 1_700_000_100.25, 7)
    assert sorted(reader.subscriptions, key=lambda row: row.written) == [
        SubscriptionRow("$replay/-1h,end/slow/#", 1, False, False, b"", start, (1, 1), True),
        SubscriptionRow("$share/g/plant/#", 1, False, True, b"", start),
        SubscriptionRow("plant/+/temp", 2, True, False, b"\x0b\x05", start),
    ]
    first, second, third = reader.cursor.inflight
    assert reader.cursor.positions == (at(52), at(51))
    assert first == InFlight(3, 1, SENT, False, home("anna"), at(21))
    assert (second.packet_id, second.qos, second.state, second.retain) == (1, 2, SENT, True)
    unrecorded = Record(0, second.value)
    assert (unrecorded.topic, unrecorded.payload, unrecorded.publisher) == (b"state/a", b"unrecorded", "bob")
    assert third == InFlight(65_535, 2, RELEASED, False)
    assert reader.will == Will("wills/reader", b"gone", 1, True, Properties(will_delay_interval=5))
    assert sorted(reader.received) == [7, 65_535]
    assert plain.session == SessionRow("plain", None, 0xFFFFFFFF, True, 1.5, 0.0, 0)
    assert (plain.cursor, plain.subscriptions, plain.will, plain.received) == (CursorRow(start, ()), [], None, [])


def test_a_kept_directory_has_its_messages_groups_and_readers(stage: Stage) -> None:
    with stage:
        retained = {each.message.topic: each for each in LogRetained(stage.log, wall=lambda: 0.0, now=lambda: 0.0).load()}
        delayed = list(LogDelayed(stage.log).load())
        groups = {row.name: row for row in LogGroups(stage.log).load()}
        readers = {name: stage.log.readers.places(name) for name in stage.log.readers.names}

    assert sorted(retained) == [b"state/a", b"state/b"]
    on, off = retained[b"state/a"], retained[b"state/b"]
    assert (on.message.payload, on.message.qos, on.message.publisher, on.user_name) == (b"on", 1, "anna", "user a")
    assert (off.message.payload, off.message.qos, off.message.publisher, off.user_name) == (b"off", 0, "bob", None)
    assert on.stored_at == at(54) / 1e6
    assert on.message.expires_at == 0.0
    assert off.message.expires_at == pytest.approx(YEAR_2100_US / 1e6)
    assert [(each.due, each.message.payload, each.message.qos, each.user_name) for each in delayed] == [
        (YEAR_2100_US / 1e6, b"1", 2, "user b"),
        (YEAR_2100_US / 1e6 + 1, b"0", 2, "user b"),
    ]
    assert groups == {
        "g": GroupRow("g", "plant/#", (at(20), at(21)), ((1, at(19)), (0, at(18)))),
        "back": GroupRow("back", "plant/+/temp", (1, 1), (), (at(30), at(31))),
    }
    assert {name: {shard: (place.position, place.pins) for shard, place in each.items()} for name, each in readers.items()} == {
        "query": {0: (at(5), True), 1: (at(6), True)},
        "watch": {1: (at(7), False)},
    }


def test_readers_of_the_newest_have_their_owners_and_filters(tmp_path: Path) -> None:
    script.unpack(FILES[-1], tmp_path)
    with Stage(tmp_path, shards=2) as stage:
        assert (stage.log.readers.owner("query"), stage.log.readers.owner("watch")) == ("ann", None)
        assert (stage.log.readers.filters("query"), stage.log.readers.filters("watch")) == (("plant/#", "state/+"), ())


def test_producers_of_the_newest_have_their_owners(tmp_path: Path) -> None:
    script.unpack(FILES[-1], tmp_path)
    with Stage(tmp_path, shards=2) as stage:
        producers = LogProducers(stage.log)
        assert producers.open_batch("import") == (7, 6, 3, "ann")
        assert producers.open_batch("keys") == (5, 5, 0, None)
        assert producers.has_key("keys", 5, b"k")
        assert (producers.mark("anna", "ann"), producers.mark("anna", "bob")) == ((42, None), (0, None))


def test_writing_continues_at_the_end_of_a_kept_directory(stage: Stage) -> None:
    with stage:
        stage.append("anna", "plant/new/temp", b"new")
        stage.settle()
        found = [each.payload for each in everything(stage, "plant/#", "linked", start=at(53))]
        mark = stage.log.producer_mark(home("link"), b"n1/3")

    assert found == [b"the end", b"new"]
    assert mark == (41, None)


def test_a_node_starts_on_a_kept_directory_and_delivers_waiting_messages(data_dir: Path) -> None:
    passwords = data_dir / "passwords"
    passwords.write_text(f"user r:{hashes.make(b'secret')}\n")
    passwords.chmod(0o600)
    history = {"shards": 2, "retention": "36500d", "bind": ""}
    replay = "$replay/-1h,end/slow/#"
    of_group = [18, 19, *range(22, 54)]  # the two that were outstanding, and what is above its positions
    with Broker(node={"data_dir": str(data_dir)}, history=history, access={"password_file": str(passwords)}) as broker:
        client = Wire(broker.host, broker.port).connect("reader", persistent=True, user_name="user r", password=b"secret")
        assert client.connack.session_present
        frames = [client.receive_frame() for _ in range(3 + 1 + 2 + 1 + len(of_group) + 1)]
        client.expect_silence()
        late = Wire(broker.host, broker.port).connect()
        late.subscribe("state/+")
        kept = {each.payload for each in late.receive_publishes(2)}

    ends = [frame for frame in frames if is_end(frame, replay)]
    packets = [decode(frame.first_byte, frame.body, 5) for frame in frames if not is_end(frame, replay)]
    messages = [packet for packet in packets if isinstance(packet, Publish)]
    assert len(ends) == 1
    assert [packet.packet_id for packet in packets if isinstance(packet, Pubrel)] == [65_535]
    in_flight = [each for each in messages if each.dup]
    assert [(each.packet_id, each.payload, each.qos) for each in in_flight] == [(3, b"21", 1), (1, b"unrecorded", 2)]
    rest = [each for each in messages if not each.dup]
    own = [each.payload for each in rest if each.properties.subscription_identifiers == (5,)]
    others = [each.payload for each in rest if not each.properties.subscription_identifiers]
    assert own == [b"53"], "what is above its cursor"
    assert Counter(others) == Counter([b"of a class"] * 2 + [b"%d" % step for step in of_group] + [b"the end"])
    assert kept == {b"on", b"off"}
