"""A Mosquitto of our own, on free ports, as a second opinion on our clients."""

from __future__ import annotations

import getpass
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from tests.support.ports import free_port


class Mosquitto(msgspec.Struct):
    """Where it listens: without and with a login, and with TLS if it has a certificate."""

    port: int
    login_port: int
    tls_port: int


@contextmanager
def mosquitto(
    folder: Path, *, users: dict[str, str] | None = None, acl: str = "", cert_file: str = "", key_file: str = ""
) -> Iterator[Mosquitto]:
    """Run Mosquitto with its files in ``folder``; users come with their passwords."""
    port, login_port, tls_port = (free_port() for _ in range(3))
    passwords, rules, configuration = folder / "passwords", folder / "rules", folder / "mosquitto.conf"
    passwords.touch()
    for user, password in (users or {}).items():
        subprocess.run([_program("mosquitto_passwd"), "-b", str(passwords), user, password], check=True, capture_output=True)
    lines = [
        f"user {getpass.getuser()}",  # else, started by root, it could not read files in directories of root
        "per_listener_settings true",
        "max_inflight_messages 1000",  # with its default of 20, Mosquitto 2.0.11 now and then forgets to send what it has queued
        f"listener {port} 127.0.0.1",
        "allow_anonymous true",
        f"listener {login_port} 127.0.0.1",
        "allow_anonymous false",
        f"password_file {passwords}",
    ]
    if acl:
        rules.write_text(acl)
        lines.append(f"acl_file {rules}")
    if cert_file:
        lines += [f"listener {tls_port} 127.0.0.1", "allow_anonymous true", f"certfile {cert_file}", f"keyfile {key_file}"]
    configuration.write_text("\n".join(lines) + "\n")
    process = subprocess.Popen([_program("mosquitto"), "-c", str(configuration)], stderr=subprocess.DEVNULL)
    try:
        for each in (port, login_port, tls_port) if cert_file else (port, login_port):
            _await_listener(each, process)  # they are opened one after the other
        yield Mosquitto(port, login_port, tls_port)
    finally:
        process.terminate()
        process.wait(10)


def _program(name: str) -> str:
    found = shutil.which(name)
    assert found, f"{name} is not installed"
    return found


def _await_listener(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        assert process.poll() is None, "Mosquitto did not start"
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.02)  # nothing tells when it listens
    raise AssertionError("Mosquitto does not listen")
