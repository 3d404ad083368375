"""ACL files: Mosquitto's syntax read strictly, and names that can never widen a rule."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.access import acl
from braidmq.access.acl import ClientRules, FileAuthorizer
from braidmq.base.errors import ConfigError, ProtocolViolation
from braidmq.mqtt.topics import check_filter, check_topic

ACL = """\
# for clients without a user name
topic read news/#

user alice
topic home/alice/#
topic read shared/+/state
topic write commands/lamp one
topic deny home/alice/secret/#

user bob
topic readwrite #

pattern read inbox/%u/#
pattern write devices/%c/state
pattern read public
"""


def rules(text: str, client_id: str = "c1", user_name: str | None = None, *, grants_unmatched: bool = False) -> ClientRules:
    return acl.parse(text).rules_for(client_id, user_name, grants_unmatched=grants_unmatched)


@pytest.mark.parametrize(
    ("user_name", "topic", "may_publish", "may_subscribe"),
    [
        (None, "news/today", False, True),
        ("alice", "news/today", False, False),
        ("alice", "home/alice/lamp", True, True),
        ("alice", "home/alice", True, True),
        ("alice", "home/bob", False, False),
        ("alice", "shared/x/state", False, True),
        ("alice", "commands/lamp one", True, False),
        ("alice", "home/alice/secret/key", False, False),
        ("alice", "inbox/alice/1", False, True),
        ("alice", "inbox/bob/1", False, False),
        ("bob", "anything/at/all", True, True),
        ("bob", "$SYS/broker/uptime", False, False),
        ("carol", "public", False, True),
        ("carol", "inbox/carol/1", False, True),
        ("carol", "devices/c1/state", True, False),
        ("carol", "devices/c2/state", False, False),
        (None, "devices/c1/state", True, False),
        (None, "public", False, True),
    ],
)
def test_rules_work_as_mosquitto_documents_them(
    user_name: str | None, topic: str, may_publish: bool, may_subscribe: bool
) -> None:
    of_client = rules(ACL, "c1", user_name)

    assert of_client.may_publish(topic) is may_publish
    assert of_client.may_subscribe(topic) is may_subscribe


@pytest.mark.parametrize(
    ("topic_filter", "is_allowed"),
    [
        ("home/alice/lamp/+", True),
        ("shared/+/state", True),
        ("shared/#", False),
        ("#", False),
        ("+/alice/#", False),
        ("home/alice/#", False),  # reaches into what is denied
        ("home/alice/+/key", False),
        ("inbox/alice/#", True),
        ("inbox/+/#", False),
    ],
)
def test_a_subscription_needs_a_rule_for_all_that_it_can_match(topic_filter: str, is_allowed: bool) -> None:
    assert rules(ACL, "c1", "alice").may_subscribe(topic_filter) is is_allowed


@pytest.mark.parametrize("name", ["+", "#", "a/b", "/", "../x", "$SYS", "a+", "#a", ""])
def test_a_client_id_with_wildcards_gets_nothing_from_patterns(name: str) -> None:
    text = "pattern readwrite devices/%c/#\npattern readwrite %c/#\n"

    of_client = rules(text, client_id=name)

    for topic in ("devices/a/x", "devices/x", "a/b", "$SYS/broker", f"devices/{name}/x", f"{name}/x"):
        assert not of_client.may_publish(topic)
        assert not of_client.may_subscribe(topic)
    for topic_filter in ("devices/#", "devices/+/#", "#", "$SYS/#", "+/#"):
        assert not of_client.may_subscribe(topic_filter)


@pytest.mark.parametrize("name", ["+", "#", "a/b", "$SYS", "", None])
def test_a_user_name_with_wildcards_gets_nothing_from_patterns(name: str | None) -> None:
    of_client = rules("pattern readwrite users/%u/#\n", user_name=name)

    assert not of_client.may_publish("users/a/x")
    assert not of_client.may_subscribe("users/#")
    assert not of_client.may_subscribe("users/+/#")


@given(st.text(min_size=1, max_size=8, alphabet="ab+#/$%cu"), st.text(min_size=1, max_size=12, alphabet="abdev+#/$%cu"))
def test_no_client_id_reaches_outside_its_own_level(client_id: str, asked: str) -> None:
    of_client = rules("pattern readwrite dev/%c/data\n", client_id=client_id)
    try:
        check_filter(asked)
    except ProtocolViolation:
        return

    if of_client.may_subscribe(asked):
        assert asked == f"dev/{client_id}/data"
        check_topic(asked)


def test_a_substituted_name_is_not_substituted_again() -> None:
    of_client = rules("pattern readwrite x/%c/%u\n", client_id="%u", user_name="bob")

    assert of_client.may_publish("x/%u/bob")
    assert not of_client.may_publish("x/bob/bob")


def test_a_name_may_stand_beside_other_text_of_its_level() -> None:
    of_client = rules("pattern write dev-%c/state\n", client_id="7")

    assert of_client.may_publish("dev-7/state")
    assert not of_client.may_publish("dev-8/state")


def test_a_deny_pattern_with_an_unusable_name_denies_more_and_not_less() -> None:
    text = "topic readwrite #\npattern deny private/%c/#\n"

    assert rules(text, "c1").may_publish("private/other/x")
    assert not rules(text, "c1").may_publish("private/c1/x")
    assert not rules(text, "a/b").may_publish("private/a/b/x")
    assert not rules(text, "+").may_publish("private/other/x")
    assert rules(text, "+").may_publish("open/x")


def test_topics_without_a_rule_are_allowed_only_if_configured() -> None:
    text = "topic deny closed/#\n"

    strict, lax = rules(text), rules(text, grants_unmatched=True)

    assert not strict.may_publish("open")
    assert not strict.may_subscribe("open")
    assert lax.may_publish("open")
    assert lax.may_subscribe("open")
    assert not lax.may_publish("closed/x")
    assert not lax.may_subscribe("#")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("topics read a", "must begin with"),
        ("topic", "topic filter is empty"),
        ("topic read", "the topic after"),
        ("topic reed a", "access must be"),
        ("topic foo bar", "access must be"),
        ("topic read a/#/b", "#"),
        ("topic read a+/b", r"\+"),
        ("topic read $share/g/a", "prefix"),
        ("user", "user name is missing"),
        ("pattern read a/%c+", r"\+"),
        ("include other", "must begin with"),
    ],
)
def test_one_bad_line_refuses_the_whole_file_with_its_number(line: str, why: str) -> None:
    with pytest.raises(ConfigError, match=f"line 2: .*{why}"):
        acl.parse(f"topic read fine\n{line}\n")


@pytest.mark.parametrize("content", [None, b"", b"# only a comment\n", b"rubbish\n", b"\xff\xfe", b"topic read a\ntopic deny\n"])
def test_a_missing_empty_or_broken_file_denies_everything(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "acl"
    if content is not None:
        path.write_bytes(content)

    of_client = FileAuthorizer(str(path), grants_unmatched=False).rules_for("c1", "alice")

    assert not of_client.unrestricted
    assert not of_client.may_publish("a")
    assert not of_client.may_subscribe("a")


def test_a_broken_file_denies_even_where_unmatched_topics_are_allowed(tmp_path: Path) -> None:
    path = tmp_path / "acl"
    path.write_text("rubbish\n")

    of_client = FileAuthorizer(str(path), grants_unmatched=True).rules_for("c1", None)

    assert not of_client.may_publish("a")


def test_without_an_acl_file_access_is_not_checked() -> None:
    of_client = FileAuthorizer("", grants_unmatched=False).rules_for("c1", None)

    assert of_client.unrestricted
    assert of_client.may_publish("a")
    assert of_client.may_subscribe("#")
