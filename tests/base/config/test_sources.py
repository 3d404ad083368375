"""Where values come from, which wins, and how wrong ones are refused."""

from __future__ import annotations

import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.config import sources as config
from braidmq.base.config.keys import NAME, Key, all_keys, format_value
from braidmq.base.config.sample import sample
from braidmq.base.config.settings import Settings
from braidmq.base.errors import ConfigError
from braidmq.base.units import Seconds

Load = Callable[..., config.Config]

# The sample of the architecture page: every part is named in it, those to come as well.
WHOLE_SAMPLE = """
[node]
name = "core1"
role = "core"
cluster = "braid"
data_dir = "data"
[listeners.tcp.default]
bind = "127.0.0.1:1883"
[cluster]
store = "embedded"
etcd = ["127.0.0.1:2379"]
rpc_bind = "127.0.0.1:4370"
core_nodes = []
secret = ""
[registry]
mode = "linear"
[history]
topics = ["#"]
min_qos = 1
retention = "7d"
retention_bytes = ""
shards = 4
layout = "learned"
durability = "fsync"
bind = "127.0.0.1:8815"
[api]
bind = "127.0.0.1:18083"
[links.region-b]
server = "b.example:8883"
topics = ["t/global/#"]
"""


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """Load a configuration from text, apart from this machine's environment and data."""

    def load(
        text: str = "", environ: Mapping[str, str] | None = None, overrides: Mapping[str, object] | None = None
    ) -> config.Config:
        file = tmp_path / "braidmq.toml"
        file.write_text(text)
        return config.load(file, environ=environ or {}, overrides=overrides or {})

    return load


def refusal(load: Load, text: str = "", **sources: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        load(text, **sources)
    return str(caught.value)


# -- sources and precedence --------------------------------------------------------------------------------------------


def test_without_a_file_the_defaults_hold() -> None:
    loaded = config.load(environ={}, overrides={})

    assert loaded.settings == Settings()
    assert set(loaded.origins.values()) == {"default"}
    assert loaded.notes == []


def test_environment_beats_run_time_beats_file_beats_default(load: Load) -> None:
    loaded = load(
        "[session]\nqueue_wait = 1\nsessions_max = 1\nsubscriptions_max = 1",
        environ={"BRAIDMQ_SESSION__QUEUE_WAIT": "3s"},
        overrides={"session.queue_wait": 2, "session.sessions_max": 2},
    )

    session = loaded.settings.session
    assert (session.queue_wait, session.sessions_max, session.subscriptions_max) == (Seconds(3), 2, 1)
    assert session.queue_messages_max == Settings().session.queue_messages_max
    origins = [
        loaded.origins[f"session.{key}"] for key in ("queue_wait", "sessions_max", "subscriptions_max", "queue_messages_max")
    ]
    assert origins == ["environment", "run time", "file", "default"]


@pytest.mark.parametrize(
    ("variable", "text", "read"),
    [
        ("BRAIDMQ_SYS__PRESENCE", "false", lambda settings: settings.sys.presence is False),
        ("BRAIDMQ_NODE__NAME", "7", lambda settings: settings.node.name == "7"),
        ("BRAIDMQ_NODE__NAME", '"quoted"', lambda settings: settings.node.name == "quoted"),
        ("BRAIDMQ_MQTT__PACKET_BYTES_MAX", "2MiB", lambda settings: settings.mqtt.packet_bytes_max == 2_097_152),
        ("BRAIDMQ_LIMITS__BYTES_PER_S", "10", lambda settings: settings.limits.bytes_per_s == 10.0),
        ("BRAIDMQ_HISTORY__TOPICS", "[]", lambda settings: settings.history.topics == ()),
        (
            "BRAIDMQ_LISTENERS__TCP__DEFAULT__BIND",
            "127.0.0.1:0",
            lambda settings: settings.listeners.tcp["default"].bind == "127.0.0.1:0",
        ),
        ("BRAIDMQ_LISTENERS__WSS__X__ENABLED", "false", None),
    ],
)
def test_environment_values_are_toml_or_plain_text(
    load: Load, variable: str, text: str, read: Callable[[Settings], bool] | None
) -> None:
    if read is None:
        assert "listeners.wss.x.bind: is missing" in refusal(load, environ={variable: text})
    else:
        assert read(load(environ={variable: text}).settings)


def test_the_environment_finds_names_with_capitals_and_hyphens(load: Load) -> None:
    loaded = load(
        '[listeners.tcp.In-House]\nbind = "127.0.0.1:1"', environ={"BRAIDMQ_LISTENERS__TCP__IN_HOUSE__BIND": "127.0.0.1:2"}
    )

    assert {name: listener.bind for name, listener in loaded.settings.listeners.tcp.items()} == {"In-House": "127.0.0.1:2"}


def test_a_key_with_a_missing_underscore_is_reported(load: Load) -> None:
    assert "did you mean BRAIDMQ_LOG__LEVEL?" in refusal(load, environ={"BRAIDMQ_LOG_LEVEL": "debug"})


def test_variables_that_are_not_keys_are_ignored(load: Load) -> None:
    assert load(environ={"BRAIDMQ_PURE": "1", "OTHER__THING": "x"}).settings == Settings()


def test_listeners_in_a_file_replace_the_default_ones(load: Load) -> None:
    loaded = load('[listeners.tcp.inside]\nbind = "127.0.0.1:1884"')

    assert list(loaded.settings.listeners.tcp) == ["inside"]
    assert loaded.settings.listeners.ws == {}


def test_an_empty_listeners_table_removes_the_default_listeners(load: Load) -> None:
    assert load("[listeners]").settings.listeners.tcp == {}


def test_the_environment_changes_a_default_listener_and_keeps_the_others(load: Load) -> None:
    listeners = load(environ={"BRAIDMQ_LISTENERS__TCP__DEFAULT__BIND": "127.0.0.1:99"}).settings.listeners

    assert listeners.tcp["default"].bind == "127.0.0.1:99"
    assert "default" in listeners.ws


# -- refusals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[mqtt]\nrecieve_maximum = 3",
            ["mqtt.recieve_maximum", "unknown key", "braidmq.toml", "did you mean mqtt.receive_maximum?"],
        ),
        ("[mqqt]\nreceive_maximum = 3", ["mqqt", "did you mean mqtt?"]),
        ('[listeners.tcp.a]\nbnd = "x"', ["listeners.tcp.a.bnd", "did you mean listeners.tcp.a.bind?"]),
        ("[zzzzzz]\nq = 1", ["zzzzzz", "unknown key"]),
        ("mqtt = 3", ["mqtt: must be a table"]),
        ("[mqtt]\nreceive_maximum = 0", ["must be a whole number from 1 to 65535, not 0"]),
        ("[mqtt]\nreceive_maximum = 65536", ["from 1 to 65535"]),
        ("[mqtt]\nreceive_maximum = true", ["whole number", "not true"]),
        ('[mqtt]\nreceive_maximum = "many"', ['not "many"']),
        ("[mqtt]\nkeep_alive_factor = nan", ["a number from 1 to 10"]),
        ('[mqtt]\npacket_bytes_max = "1 parsec"', ["must be a size", '"64KiB"']),
        ("[mqtt]\npacket_bytes_max = 63", ['from "64B"']),
        ('[session]\nexpiry_max = "soon"', ["must be a duration", '"250ms"']),
        ("[session]\nexpiry_max = -1", ["must be a duration"]),
        ('[shared]\nstrategy = "round-robin"', ["one of", 'did you mean "round_robin"?']),
        ('[sys]\npresence = "false"', ["true or false", "without quotes"]),
        ('[history]\ntopics = "a/#"', ["a list of strings", 'write ["a/#"]']),
        ('[node]\nname = "a/b"', ["node.name", "not a name"]),
        ('[node]\nname = ""', ["node.name", "not a name"]),
        ('[mqtt]\nresponse_topic_prefix = "a/#"', ["mqtt.response_topic_prefix"]),
        ("[listeners.tcp.a]\nenabled = true", ["listeners.tcp.a.bind: is missing"]),
        ("[mqtt\n", ["braidmq.toml is not TOML", "line 1"]),
    ],
)
def test_wrong_values_are_rejected_with_a_clear_message(load: Load, text: str, words: list[str]) -> None:
    said = refusal(load, text)

    assert [word for word in words if word not in said] == []
    assert "\n" not in said


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*nowhere\.toml"):
        config.load(tmp_path / "nowhere.toml", environ={}, overrides={})


def test_error_messages_do_not_show_a_secret(load: Load) -> None:
    assert "hush" not in refusal(load, '[cluster]\nsecret = ["hush"]')


# -- parts to come -----------------------------------------------------------------------------------------------------


def test_the_whole_sample_starts_with_one_note_about_planned_keys(load: Load) -> None:
    loaded = load(WHOLE_SAMPLE)

    assert len(loaded.notes) == 1
    assert "links.*" in loaded.notes[0]


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[links.other]\nserver = "o.example:8883"', "links.other.server"),
        ('[links.region-b]\nserver = "o.example:8883"', "links.region-b.server"),
    ],
)
def test_settings_of_parts_that_do_not_exist_yet_are_rejected(load: Load, text: str, key: str) -> None:
    said = refusal(load, text)

    assert said.startswith(f"{key}: ")
    assert "not supported yet" in said


def test_recorded_topics_and_retention_cause_no_notes(load: Load) -> None:
    loaded = load(
        """
        [history]
        topics = ["plant/#"]
        retention = "1d"
        relearn = true
        [history.classes.audit]
        topics = ["plant/+/audit"]
        retention = "365d"
        """
    )

    assert loaded.settings.history.classes["audit"].retention == Seconds(365 * 86400)
    assert loaded.settings.history.relearn
    assert loaded.notes == []


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ('[history]\nretention_bytes = "a lot"', "history.retention_bytes"),
        ('[history.classes.a]\ntopics = ["a"]\nretention = 1\nretention_bytes = "x"', "history.classes.a.retention_bytes"),
        ("[history.classes.a]\ntopics = []\nretention = 1", "history.classes.a.topics"),
        ('[history.classes."a b"]\ntopics = ["a"]\nretention = 1', 'history.classes."a b"'),
        ('[history.classes.a]\ntopics = ["a"]', "history.classes.a.retention"),
    ],
)
def test_invalid_history_settings_are_rejected_with_their_key(load: Load, text: str, key: str) -> None:
    assert refusal(load, text).startswith(f"{key}: ")


# -- run time ----------------------------------------------------------------------------------------------------------


def test_saved_overrides_come_back_at_the_next_load(tmp_path: Path) -> None:
    overrides = dict([config.parse_override("session.queue_wait", "2s"), config.parse_override("log.level", "debug")])
    overrides['listeners.tcp."a-b".bind'] = "127.0.0.1:77"

    config.write_overrides(tmp_path, overrides)
    loaded = config.load(environ={"BRAIDMQ_NODE__DATA_DIR": str(tmp_path)})

    assert (loaded.settings.session.queue_wait, loaded.settings.log.level) == (Seconds(2), "debug")
    assert loaded.settings.listeners.tcp["a-b"].bind == "127.0.0.1:77"
    assert loaded.origins["log.level"] == "run time"


def test_saving_replaces_the_file_whole_and_for_its_owner_only(tmp_path: Path) -> None:
    config.write_overrides(tmp_path, {"log.level": "debug", "sys.interval": 3})
    config.write_overrides(tmp_path, {"log.level": "error"})

    assert config.read_overrides(tmp_path) == {"log.level": "error"}
    assert [file.name for file in tmp_path.iterdir()] == ["overrides.toml"]
    assert stat.S_IMODE((tmp_path / "overrides.toml").stat().st_mode) == 0o600


def test_a_broken_overrides_file_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "overrides.toml").write_text("log = [")

    with pytest.raises(ConfigError, match=r"overrides\.toml is not TOML"):
        config.read_overrides(tmp_path)


@pytest.mark.parametrize("name", ["node.name", "node.data_dir"])
def test_the_identity_of_the_node_cannot_be_set_at_run_time(name: str) -> None:
    with pytest.raises(ConfigError, match="cannot be set at run time"):
        config.parse_override(name, "x")


@pytest.mark.parametrize("name", ["", "log", "log level", "log.level = 1\nx", "log.levl", "log.level.deep"])
def test_an_override_needs_a_known_key(name: str) -> None:
    with pytest.raises(ConfigError):
        config.parse_override(name, "info")


# -- changes -----------------------------------------------------------------------------------------------------------


def test_changes_name_the_keys_and_those_that_need_a_restart(load: Load) -> None:
    old = load('[listeners.tcp.a]\nbind = "127.0.0.1:1"\n[log]\nlevel = "info"').settings
    new = load(
        '[listeners.tcp.a]\nbind = "127.0.0.1:2"\nconnections_max = 5\n[log]\nlevel = "debug"\n[node]\nname = "n"'
    ).settings

    changes = config.describe_changes(old, new)

    assert changes.changed == ["node.name", "listeners.tcp.a.bind", "listeners.tcp.a.connections_max", "log.level"]
    assert changes.restart == ["node.name", "listeners.tcp.a.bind"]


def test_a_listener_that_comes_or_goes_is_a_change_that_needs_a_restart(load: Load) -> None:
    old, new = load().settings, load('[listeners.tcp.default]\nbind = "127.0.0.1:1883"').settings

    assert "listeners.ws.default.bind" in config.describe_changes(old, new).restart
    assert "listeners.ws.default.bind" in config.describe_changes(new, old).restart
    assert config.describe_changes(new, new).changed == []


# -- documentation -----------------------------------------------------------------------------------------------------


def test_the_sample_file_gives_the_defaults(load: Load) -> None:
    loaded = load(sample())

    assert loaded.settings == Settings()


def test_the_sample_file_names_every_key() -> None:
    text = sample()

    assert [key.name for key in all_keys() if f"{key.path[-1]} =" not in text] == []


def test_every_key_can_be_set_by_the_environment_to_its_default(load: Load) -> None:
    plain = [key for key in all_keys() if NAME not in key.path]
    rows = {name: value for name, value, _ in config.load(environ={}, overrides={}).rows()}

    environ = {"BRAIDMQ_" + "__".join(key.path).upper(): rows[key.name] for key in plain}

    assert load(environ=environ).settings == Settings()


# -- any input ---------------------------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=8), below, max_size=3),
    max_leaves=6,
)
names = st.sampled_from(sorted({part for key in all_keys() for part in key.path})) | st.text(max_size=5)
trees = st.dictionaries(
    names, st.dictionaries(names, values | st.dictionaries(names, values, max_size=2), max_size=3) | values, max_size=3
)


@given(trees)
def test_any_tree_of_tables_is_a_configuration_or_refused_in_one_line(tree: dict[str, object]) -> None:
    try:
        loaded = config.from_tables(tree)
    except ConfigError as problem:
        assert "\n" not in str(problem)
    else:
        assert {name for name, _, _ in loaded.rows()} == set(loaded.origins)


@given(st.sampled_from([key for key in all_keys() if NAME not in key.path and key.path[0] != "node"]), st.text(max_size=12))
def test_any_text_for_any_key_is_a_value_of_its_type_or_refused(key: Key, text: str) -> None:
    try:
        name, value = config.parse_override(key.name, text)
    except ConfigError as problem:
        assert problem.key == key.name
    else:
        # What was read once reads the same again from its own written form.
        assert name == key.name
        assert config.parse_override(name, format_value(value))[1] == value
