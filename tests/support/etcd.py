"""etcd of our own on loopback, with members that can be killed, paused, started again, and restored from a copy of their data."""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.request import urlopen

import grpc

from braidmq.cluster.corestore.etcd.messages import AUTHENTICATE, COMPACT, STATUS, compact_request, decode_status
from braidmq.cluster.corestore.etcd.program import EtcdAddresses, etcd_command, etcd_version, find_etcd
from braidmq.cluster.corestore.etcd.protobuf import put_bytes, put_int, put_message
from tests.support.certificates import Pair
from tests.support.pausing import pause
from tests.support.ports import free_port

START_S = 20.0


class EtcdMember:
    """One process of etcd."""

    def __init__(self, command: list[str], address: str, health: str, data_dir: Path, log_file: Path) -> None:
        """``address``: for clients. ``health``: where it says that it is well."""
        self.address = address
        self._health = health
        self.data_dir = data_dir
        self._command = command
        self._log_file = log_file
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        """Start the process; `wait_until_up` follows."""
        with self._log_file.open("ab") as output:
            self._process = subprocess.Popen(self._command, stdout=output, stderr=output)

    def wait_until_up(self) -> None:
        """Return when the member serves clients; it takes their connections long before."""
        end = time.monotonic() + START_S
        while True:
            assert self._process is not None
            assert self._process.poll() is None, self._log_file.read_text()[-2000:]
            try:
                with urlopen(f"http://{self._health}/health", timeout=5):
                    return
            except OSError:
                assert time.monotonic() < end, "etcd does not start"
                time.sleep(0.02)

    def start(self) -> None:
        """Start the process and wait for it."""
        self.launch()
        self.wait_until_up()

    def kill(self) -> None:
        """End the process without a warning."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(10)
            self._process = None

    def pause(self) -> None:
        """Let the process hang."""
        assert self._process is not None
        pause(self._process)

    def go_on(self) -> None:
        """Let a process that hangs continue."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def back_up(self, folder: Path) -> None:
        """Copy the data of a member that does not run."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.data_dir, folder)

    def restore(self, folder: Path) -> None:
        """Put a copy of the data back; the member must not run."""
        shutil.rmtree(self.data_dir)
        shutil.copytree(folder, self.data_dir)


class Etcd:
    """The members of one etcd."""

    def __init__(self, members: Sequence[EtcdMember]) -> None:
        self.members = list(members)

    @property
    def addresses(self) -> list[str]:
        """Where clients find them."""
        return [member.address for member in self.members]

    def leader(self) -> EtcdMember:
        """The member that leads."""
        for member in self.members:
            status = decode_status(call(member.address, STATUS, b""))
            if status.leader == status.header.member_id:
                return member
        raise AssertionError("no member leads")

    def compact(self, revision: int) -> None:
        """Forget what is older than a revision."""
        call(self.addresses[0], COMPACT, compact_request(revision))

    def require_login(self, users: dict[str, str], prefix: bytes) -> None:
        """Have clients log in as one of these users, by password; they may use the rows with a prefix."""
        auth = AUTHENTICATE.rpartition("/")[0]
        prefix_end = prefix[:-1] + bytes([prefix[-1] + 1])
        call(self.addresses[0], f"{auth}/RoleAdd", _message(b"cluster"))
        permission = bytearray()
        put_int(permission, 1, 2)  # to read and to write
        put_bytes(permission, 2, prefix)
        put_bytes(permission, 3, prefix_end)
        granted = bytearray(_message(b"cluster"))
        put_message(granted, 2, permission)
        call(self.addresses[0], f"{auth}/RoleGrantPermission", bytes(granted))
        for user, password in {**users, "root": "root"}.items():
            call(self.addresses[0], f"{auth}/UserAdd", _message(user.encode(), password.encode()))
            role = b"root" if user == "root" else b"cluster"
            call(self.addresses[0], f"{auth}/UserGrantRole", _message(user.encode(), role))
        call(self.addresses[0], f"{auth}/AuthEnable", b"")


def call(address: str, method: str, request: bytes) -> bytes:
    """Call a member without a login; blocks."""
    with grpc.insecure_channel(address) as channel:
        return bytes(channel.unary_unary(method)(request, timeout=10, wait_for_ready=True))


def _message(*texts: bytes) -> bytes:
    out = bytearray()
    for number, text in enumerate(texts, 1):
        put_bytes(out, number, text)
    return bytes(out)


@contextmanager
def running_etcd(folder: Path, *, count: int = 1, server: Pair | None = None, flags: Sequence[str] = ()) -> Iterator[Etcd]:
    """Run etcd with its files in ``folder``. ``server``: the certificate for clients, which then use TLS."""
    program = find_etcd()
    assert program is not None
    version = etcd_version(program)
    addresses = {f"e{number}": EtcdAddresses(f"127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}") for number in range(count)}
    # Three members on a busy machine elect again and again with less.
    more = [*flags, "--logger=zap", "--log-level=error", "--heartbeat-interval=50", "--election-timeout=300"]
    if version >= (3, 5, 0):
        more.append("--unsafe-no-fsync")  # only the speed of the tests; none of them cuts the power
    if server is not None:
        more += [f"--cert-file={server.cert_file}", f"--key-file={server.key_file}"]
    members = []
    for name, address in addresses.items():
        data_dir = folder / name
        scheme = "http" if server is None else "https"
        command = etcd_command(program, version, name, data_dir, addresses, scheme)
        health = f"127.0.0.1:{free_port()}"
        command += [f"--listen-metrics-urls=http://{health}", *more]
        members.append(EtcdMember(command, address.clients, health, data_dir, folder / f"{name}.txt"))
    try:
        for member in members:
            member.launch()
        for member in members:
            member.wait_until_up()
        yield Etcd(members)
    finally:
        for member in members:
            member.kill()
