"""Tokens of the history service."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from braidmq.base.errors import Corruption
from braidmq.history.node_side.tokens import KEY_NAME, Tokens

LINES = b"what the password file says"


def same(user_name: str) -> bytes:
    """The fingerprint of users whose lines have not changed."""
    return LINES


@given(st.text(min_size=1))
def test_a_token_names_the_user_it_was_made_for(user_name: str) -> None:
    tokens = Tokens(b"k" * 32)

    assert tokens.read(tokens.make(user_name, LINES, 60), same) == user_name


def test_a_token_expires() -> None:
    now = 1000.0
    tokens = Tokens(b"k" * 32, lambda: now)
    token = tokens.make("ann", LINES, 60)

    now = 1060.0
    assert tokens.read(token, same) == "ann"
    now = 1061.0
    assert tokens.read(token, same) is None


@pytest.mark.parametrize("now", [b"other lines", None], ids=["changed", "gone"])
def test_a_token_is_bound_to_the_password_lines_of_its_user(now: bytes | None) -> None:
    tokens = Tokens(b"k" * 32)
    token = tokens.make("ann", LINES, 60)

    assert tokens.read(token, lambda user_name: now) is None
    assert tokens.read(token, {"ann": LINES}.get) == "ann"


def test_a_token_of_another_key_is_invalid() -> None:
    assert Tokens(b"k" * 32).read(Tokens(b"l" * 32).make("ann", LINES, 60), same) is None


@given(st.data())
def test_a_changed_token_is_invalid(data: st.DataObject) -> None:
    tokens = Tokens(b"k" * 32)
    token = tokens.make("ann", LINES, 60)
    place = data.draw(st.integers(0, len(token) - 1))
    other = data.draw(st.characters(codec="utf-8").filter(lambda each: each != token[place]))

    changed = token[:place] + other + token[place + 1 :]

    assert tokens.read(changed, same) is None


@pytest.mark.parametrize(("letter", "other"), [("_", "/"), ("-", "+")])
def test_a_token_in_another_alphabet_is_invalid(letter: str, other: str) -> None:
    tokens = Tokens(b"k" * 32)
    names = (f"ann{number}" for number in range(1000))
    token = next(made for name in names if letter in (made := tokens.make(name, LINES, 60)))

    assert tokens.read(token, same) is not None
    assert tokens.read(token.replace(letter, other), same) is None


@given(st.text())
def test_arbitrary_text_is_not_a_token(text: str) -> None:
    assert Tokens(b"k" * 32).read(text, same) is None


def test_the_key_is_made_once_and_is_for_its_owner_alone(tmp_path: Path) -> None:
    token = Tokens.load(tmp_path).make("ann", LINES, 60)

    assert Tokens.load(tmp_path).read(token, same) == "ann"
    assert stat.S_IMODE((tmp_path / KEY_NAME).stat().st_mode) == 0o600


def test_a_key_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    (tmp_path / KEY_NAME).write_bytes(b"short")

    with pytest.raises(Corruption, match="is not a valid key"):
        Tokens.load(tmp_path)


def test_cores_of_one_cluster_take_tokens_of_each_other_and_of_no_other_cluster() -> None:
    token = Tokens.shared("a secret", "berlin").make("ann", LINES, 60)

    assert Tokens.shared("a secret", "berlin").read(token, same) == "ann"
    assert Tokens.shared("another", "berlin").read(token, same) is None
    assert Tokens.shared("a secret", "paris").read(token, same) is None
