"""Workers as processes: they start with their core, end with it, and come back when they end on their own."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from braidmq.base.config import sources
from braidmq.base.config.transfer import encode_config
from braidmq.cli.main import main
from braidmq.cluster.workers import worker_messages
from braidmq.cluster.workers.worker_messages import WorkerSetup
from tests.support.clients.wire import Wire
from tests.support.started import DEADLINE_S, Started, environment, try_start

SECRET = "hush-hush-hush"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The configuration of a core on a free port, with a secret."""
    file = tmp_path / "braidmq.toml"
    write(file)
    return file


def write(file: Path, more: str = "") -> None:
    file.write_text(f"""
        [node]
        data_dir = "{file.parent / "data"}"
        [listeners.tcp.default]
        bind = "127.0.0.1:0"
        [api]
        bind = ""
        [cluster]
        secret = "{SECRET}"
        {more}
        """)


def start(file: Path, *options: str) -> Started:
    return Started(file, options=["--workers", "2", *options])


def await_worker(core: Started, number: int) -> int:
    """The process of a worker that is about to start."""
    return int(core.await_line(rf"worker {number} is process (\d+)")[1])


@contextmanager
def watched(process_id: int) -> Iterator[select.poll]:
    """Something that becomes ready when the process ends."""
    descriptor = os.pidfd_open(process_id)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        yield poll
    finally:
        os.close(descriptor)


def has_ended(poll: select.poll) -> bool:
    return bool(poll.poll(DEADLINE_S * 1000))


def test_workers_end_when_their_core_is_killed(file: Path) -> None:
    with start(file) as core:
        first, second = await_worker(core, 1), await_worker(core, 2)
        core.await_line("2 workers are ready")
        with watched(first) as one, watched(second) as other:
            core.send(signal.SIGKILL)

            assert has_ended(one)
            assert has_ended(other)


def test_a_stopped_worker_ends_with_its_core_too(file: Path) -> None:
    with start(file) as core:
        worker = await_worker(core, 1)
        core.await_line("2 workers are ready")
        with watched(worker) as process:
            os.kill(worker, signal.SIGSTOP)
            core.send(signal.SIGKILL)

            assert has_ended(process)


def test_workers_stop_with_their_core(file: Path) -> None:
    with start(file) as core:
        worker = await_worker(core, 1)
        core.await_line("2 workers are ready")
        with watched(worker) as process:
            core.send(signal.SIGTERM)

            assert core.await_end() == 0
            assert has_ended(process)
        assert not [line for line in core.log if "is down" in line or "killed" in line]


def test_a_worker_that_was_killed_is_started_again(file: Path) -> None:
    with start(file) as core:
        first = await_worker(core, 1)
        core.await_line("2 workers are ready")

        os.kill(first, signal.SIGKILL)

        core.await_line("worker 1 is down: it was ended by signal 9; restarting it in 0.5 s")
        second = await_worker(core, 1)
        core.await_line(r"core1/w1: room for \d+ client")
        assert second != first


def test_no_secret_is_in_the_arguments_or_the_environment_of_a_worker(file: Path) -> None:
    with start(file) as core:
        worker = await_worker(core, 1)
        core.await_line("2 workers are ready")

        arguments = Path(f"/proc/{worker}/cmdline").read_bytes().split(b"\0")
        assert arguments[1:] == [b"-m", b"braidmq", b"worker", b""]
        given = Path(f"/proc/{worker}/environ").read_bytes()
        assert sorted(given.split(b"\0")) == sorted(Path(f"/proc/{core.pid}/environ").read_bytes().split(b"\0"))
        assert SECRET.encode() not in given
        core.send(signal.SIGTERM)
        core.await_end()
        assert not [line for line in core.log if SECRET in line]


def test_a_reload_reaches_the_workers(file: Path) -> None:
    with start(file) as core:
        core.await_line("2 workers are ready")
        core.await_port()
        write(file, '[log]\nformat = "json"')

        core.send(signal.SIGHUP)

        core.await_line(r'"message": "reloaded", "node": "core1/w\d"')


def test_a_foreign_listener_on_a_port_is_an_error_that_names_it(file: Path) -> None:
    with socket.socket() as foreign:
        foreign.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        foreign.bind(("127.0.0.1", 0))
        foreign.listen()
        address = f"127.0.0.1:{foreign.getsockname()[1]}"
        file.write_text(file.read_text().replace("127.0.0.1:0", address))

        ended = try_start(file, "--workers", "1")

    assert ended.returncode == 2
    assert f"listeners.tcp.default.bind: address {address} is in use" in ended.stderr


def listening_sockets(port: int) -> int:
    """How many sockets listen on a port of the loopback address."""
    local = f"0100007F:{port:04X}"
    rows = (line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:])
    # By inode: while sockets come and go, the kernel may list one twice.
    return len({row[9] for row in rows if row[1] == local and row[3] == "0A"})


@pytest.mark.parametrize(("options", "count"), [((), 2), (("--no-core-listeners",), 1)], ids=["all", "workers only"])
def test_clients_are_accepted_by_workers_and_unless_told_otherwise_by_the_core(
    file: Path, options: tuple[str, ...], count: int
) -> None:
    with start(file, *options) as core:
        port = core.await_port()

        assert listening_sockets(port) == count
        with Wire("127.0.0.1", port) as client:
            client.connect()


# -- one worker, with the test as its core -----------------------------------------------------------------------------


class Worker:
    """A worker process; the test holds the other end of its standard input."""

    def __init__(self, folder: Path, parent_pid: int | None = None) -> None:
        self._config = sources.from_tables({"node": {"data_dir": str(folder / "run"), "name": "w"}})
        self.core, theirs = socket.socketpair()
        self.core.settimeout(DEADLINE_S)
        command = [sys.executable, "-m", "braidmq", "worker"]
        self.process = subprocess.Popen(command, stdin=theirs.fileno(), stderr=subprocess.PIPE, text=True, env=environment())
        theirs.close()
        setup = WorkerSetup(parent_pid or os.getpid(), encode_config(self._config), str(folder / "core.sock"), b"secret")
        self.core.sendall(worker_messages.frame(setup))

    def await_line(self, text: str) -> None:
        assert self.process.stderr is not None
        while text not in (line := self.process.stderr.readline()):
            assert line, "the worker has ended"

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, errors


@pytest.fixture
def worker(tmp_path: Path) -> Iterator[Worker]:
    worker = Worker(tmp_path)
    yield worker
    worker.core.close()
    worker.process.kill()
    worker.process.communicate()


def test_a_worker_ends_at_the_end_of_its_standard_input(worker: Worker) -> None:
    worker.await_line("cannot connect")

    worker.core.close()

    status, errors = worker.end()
    assert status == 0
    assert "the core has ended" in errors


def test_a_worker_that_waits_for_its_core_stops_upon_sigterm(worker: Worker) -> None:
    worker.await_line("cannot connect")

    worker.process.send_signal(signal.SIGTERM)

    assert worker.end()[0] == 0


def test_a_worker_whose_core_ended_before_it_began_does_not_start(tmp_path: Path) -> None:
    worker = Worker(tmp_path, parent_pid=1)  # as if another process had become its parent

    status, _ = worker.end()

    assert status == 1
    assert worker.core.recv(1) == b""
    worker.core.close()


def test_only_a_core_starts_a_worker() -> None:
    command = [sys.executable, "-m", "braidmq", "worker"]
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment(), timeout=DEADLINE_S
    )

    assert ended.returncode == 2
    assert "a worker is started by its core: use braidmq start --workers N" in ended.stderr


@pytest.mark.parametrize("count", ["0", "257", "many", "-1", "1.5"])
def test_a_number_of_workers_that_makes_no_sense_is_rejected(file: Path, count: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("start", "-c", str(file), f"--workers={count}") == 2
    assert "--workers must be a number from 1 to 256 or auto" in capsys.readouterr().err


def test_a_core_without_listeners_needs_workers(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command("start", "-c", str(file), "--no-core-listeners") == 2
    assert "--no-core-listeners needs --workers" in capsys.readouterr().err


def run_command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0)
