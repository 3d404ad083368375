"""Hashes made by other programs verify, ours are argon2id, and broken ones are recognised."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from pathlib import Path

import bcrypt
import pytest

from braidmq.access import hashes


def mosquitto_hash(path: Path, password: str, scheme: str) -> str:
    path.touch()
    subprocess.run(["mosquitto_passwd", "-H", scheme, "-b", str(path), "user", password], check=True, capture_output=True)
    return path.read_text().strip().partition(":")[2]


@pytest.mark.needs("mosquitto_passwd")
@pytest.mark.parametrize(("scheme", "prefix"), [("sha512", "$6$"), ("sha512-pbkdf2", "$7$")])
def test_a_hash_made_by_mosquitto_passwd_verifies(tmp_path: Path, scheme: str, prefix: str) -> None:
    text = mosquitto_hash(tmp_path / "passwd", "säcret pass", scheme)

    assert text.startswith(prefix)
    hashes.check_form(text)
    assert hashes.verify(text, "säcret pass".encode())
    assert not hashes.verify(text, b"other")
    assert hashes.is_outdated(text)


@pytest.mark.parametrize("prefix", [b"2a", b"2b"])
def test_bcrypt_hashes_of_either_prefix_verify(prefix: bytes) -> None:
    text = bcrypt.hashpw(b"secret", bcrypt.gensalt(4, prefix)).decode()

    hashes.check_form(text)
    assert hashes.verify(text, b"secret")
    assert not hashes.verify(text, b"Secret")
    assert hashes.is_outdated(text)


def test_bcrypt_as_php_and_apache_write_it_verifies() -> None:
    text = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode().replace("$2b$", "$2y$", 1)

    hashes.check_form(text)
    assert hashes.verify(text, b"secret")


def test_bcrypt_uses_the_first_72_bytes() -> None:
    text = bcrypt.hashpw(b"x" * 72, bcrypt.gensalt(4)).decode()

    assert hashes.verify(text, b"x" * 80)
    assert not hashes.verify(text, b"x" * 71)


def test_new_hashes_are_argon2id_with_parameters_for_many_small_devices() -> None:
    text = hashes.make(b"secret")

    assert text.startswith("$argon2id$v=19$m=16384,t=2,p=1$")
    hashes.check_form(text)
    assert hashes.verify(text, b"secret")
    assert not hashes.verify(text, b"secre")
    assert not hashes.is_outdated(text)
    assert hashes.make(b"secret") != text


GOOD_DIGEST = base64.b64encode(hashlib.sha512(b"").digest()).decode()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("plain", "plain-text"),
        ("", "plain-text"),
        ("$5$salt$hash", "plain-text"),
        ("$argon2id$v=19$m=99", "incomplete"),
        ("$argon2id$v=19$m=99999999,t=2,p=1$c2FsdHNhbHRzYWx0$aGFzaGhhc2hoYXNo", "too expensive"),
        ("$argon2id$v=19$m=1024,t=2,p=99$c2FsdHNhbHRzYWx0$aGFzaGhhc2hoYXNo", "too expensive"),
        ("$2b$04$tooshort", "incomplete"),
        ("$2b$31$" + "a" * 53, "cost"),
        ("$6$salt", "incomplete"),
        ("$6$!!!!$" + GOOD_DIGEST, "base64"),
        ("$6$c2FsdA==$c2hvcnQ=", "length"),
        (f"$7$0$c2FsdA==${GOOD_DIGEST}", "incomplete"),
        (f"$7$999999999$c2FsdA==${GOOD_DIGEST}", "rounds"),
        (f"$7$x$c2FsdA==${GOOD_DIGEST}", "incomplete"),
    ],
)
def test_a_broken_hash_is_named_as_such(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        hashes.check_form(text)
