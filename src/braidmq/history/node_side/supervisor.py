"""Supervises the history service: starts its process, answers its requests, restarts it when it ends.

New certificates also need a new process. That is not a failure: it is restarted without a pause, and no restart is counted.

Failures of the service never stop the node. Only short answers run on the node's event loop.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from braidmq.base.backoff import Backoff
from braidmq.base.config.addresses import Address, is_loopback, parse_address
from braidmq.base.config.settings import HistorySettings, Settings
from braidmq.base.errors import BraidError, ConfigError, Unavailable
from braidmq.broker.listeners.listener_set import CERTIFICATE_POLL_S
from braidmq.history import messages
from braidmq.history.node_side.answers import Answers, Log, ReaderAccess
from braidmq.history.node_side.certificates import ServiceCertificates
from braidmq.history.node_side.cluster_reads import ClusterReads
from braidmq.history.node_side.tokens import Tokens

log = logging.getLogger("braidmq.history")

_FIRST_PAUSE_S: Final = 0.5
_PAUSE_MAX_S: Final = 30.0
# After a run of this length, restarts begin again with the first pause.
_STABLE_S: Final = 60.0
_STOP_S: Final = 3.0
_QUESTIONS_MAX: Final = 256
# How long an operator waits for a count of records; after that, an upper bound is shown.
_BACKLOGS_S: Final = 3.0
_SCRATCH: Final = "history"


class HistoryService:
    """The service of one node; call `start`, then `stop`. `address` is set once it listens, and does not change."""

    def __init__(
        self,
        settings: Settings,
        data_dir: Path,
        message_log: Log,
        access: ReaderAccess,
        cluster: ClusterReads | None = None,
    ) -> None:
        """``cluster``: the other cores, if there are any.

        Raises ConfigError for an invalid address or TLS file, Corruption for an invalid key file.
        """
        history = settings.history
        try:
            self._bind = parse_address(history.bind)
        except ValueError as error:
            raise ConfigError("history.bind", str(error)) from None
        self.address: Address | None = None
        self.process_id: int | None = None
        self.restarts = 0
        self.served = messages.Served(0, 0, 0)
        is_shared = cluster is not None and bool(settings.cluster.secret)
        self.tokens = Tokens.shared(settings.cluster.secret, settings.node.cluster) if is_shared else Tokens.load(data_dir)
        self._before = messages.Served(0, 0, 0)  # totals of processes that have ended
        is_open = history.anonymous == "all" or (history.anonymous == "loopback" and is_loopback(self._bind.host))
        self._answers = Answers(
            message_log,
            access,
            self.tokens,
            anonymous_allowed=is_open,
            readers_max=history.named_readers_max,
            cluster=cluster,
        )
        self._owns: dict[int, asyncio.Future[bytes]] = {}  # what other cores have asked, by number
        if cluster is not None:
            cluster.serve(self.ask_own, self._answers.save)
        self._certificates = ServiceCertificates(history)
        self._setup = messages.Setup(
            log_dir=str((data_dir / "log").absolute()),
            scratch_dir=str((data_dir / _SCRATCH).absolute()),
            host=self._bind.host,
            port=self._bind.port,
            limits=messages.Limits(history.streams_max, int(history.reader_bytes_per_s_max)),
            tls=self._certificates.tls,
            log_level=settings.log.level,
            log_format=settings.log.format,
            log_lines_per_s_max=settings.log.lines_per_s_max,
            cluster=None if cluster is None else cluster.setup,
        )
        self._tasks: list[asyncio.Task[None]] = []
        self._conversation: Conversation | None = None
        self._looking = asyncio.Lock()  # one check of the files at a time, so that older settings do not win
        self._asking = asyncio.Lock()
        self._asked = 0
        self._counted: asyncio.Future[list[messages.Behind]] | None = None
        self._is_up = asyncio.Event()
        self._is_outdated = asyncio.Event()  # the running process, if any, has outdated settings

    @staticmethod
    def is_possible() -> bool:
        """Whether its dependencies are installed."""
        return importlib.util.find_spec("pyarrow") is not None

    def start(self) -> None:
        """Start the service; it listens about a second later (`wait_up`)."""
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._keep_running(), name="history service"),
            loop.create_task(self._watch_certificates(), name="certificates of the history service"),
        ]

    async def wait_up(self) -> None:
        """Wait until the service listens."""
        await self._is_up.wait()

    async def stop(self) -> None:
        """Stop the service, and wait until it has ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def backlogs(self, readers: list[messages.ReaderAt]) -> list[messages.Behind] | None:
        """The backlog of each reader, counted by the service's process; None if the service does not answer in time."""
        async with self._asking:
            if self._conversation is None or not self._is_up.is_set():
                return None
            self._asked += 1
            self._counted = asyncio.get_running_loop().create_future()
            self._conversation.send(messages.AskBacklogs(self._asked, readers))
            try:
                async with asyncio.timeout(_BACKLOGS_S):
                    found = await self._counted
            except TimeoutError:
                return None
            return found if len(found) == len(readers) else None

    async def ask_own(self, request: bytes) -> bytes:
        """What the service says to another core about this core's shards. Raises Unavailable."""
        conversation = self._conversation
        if conversation is None or not self._is_up.is_set():
            raise Unavailable("its history service is not ready", _FIRST_PAUSE_S)
        self._asked += 1
        number = self._asked
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._owns[number] = answer
        conversation.send(messages.AskOwn(number, request))
        try:
            return await answer
        finally:
            del self._owns[number]

    @property
    def readers_refused(self) -> int:
        """How often a named reader was rejected: it belongs to another user, needs a user, or exceeds the maximum."""
        return self._answers.readers_refused

    @property
    def certificate_expiry(self) -> float | None:
        """When its certificate expires, in seconds since 1970; None without TLS."""
        return self._certificates.expires_at

    async def reload(self, history: HistorySettings) -> None:
        """Read the TLS files that these settings name. If they changed, restart the service at once, at the same address.

        If they are invalid, log an error and let the service continue with the current ones.
        """
        async with self._looking:
            if await asyncio.to_thread(self._certificates.reload, history):
                self._renew()

    async def _watch_certificates(self) -> None:
        while True:
            await asyncio.sleep(CERTIFICATE_POLL_S)
            async with self._looking:
                try:
                    if await asyncio.to_thread(self._certificates.refresh):
                        self._renew()
                except Exception:  # a bug of ours: log it, and keep watching
                    log.exception("the certificates of the history service cannot be checked")

    def _renew(self) -> None:
        self._setup = msgspec.structs.replace(self._setup, tls=self._certificates.tls)
        self._is_outdated.set()
        self._is_up.clear()
        self.address = None
        if self._conversation is not None:
            self._conversation.close()

    async def _keep_running(self) -> None:
        loop = asyncio.get_running_loop()
        backoff = Backoff(_FIRST_PAUSE_S, _PAUSE_MAX_S)
        while True:
            began = loop.time()
            try:
                reason = await self._run()
            except Exception as problem:  # a bug of ours: log it, and restart the service
                log.exception("the supervisor of the history service failed")
                reason = str(problem)
            self._is_up.clear()
            self.address = None
            if self._is_outdated.is_set():
                self._is_outdated.clear()  # restart without a pause only once: starting may fail
                backoff.reset()
                continue
            if loop.time() - began > _STABLE_S:
                backoff.reset()
            pause_s = backoff.next()
            log.error("the history service is down: %s; restarting it in %g s", reason, pause_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._is_outdated.wait()
            self.restarts += 1

    async def _run(self) -> str:
        """Run one process until it ends; returns the reason."""
        ours, theirs = socket.socketpair()
        try:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "braidmq.history.service.child",
                str(theirs.fileno()),
                str(os.getpid()),
                pass_fds=(theirs.fileno(),),
                stdin=asyncio.subprocess.DEVNULL,
            )
        except OSError as problem:
            ours.close()
            return f"it cannot be started ({problem})"
        finally:
            theirs.close()
        self.process_id = process.pid
        self._conversation = conversation = Conversation(*await asyncio.open_unix_connection(sock=ours), self._answers)
        reason = ""
        try:
            self._is_outdated.clear()
            conversation.send(self._setup)
            async for message in conversation:
                match message:
                    case messages.Listening(port) if not self._is_outdated.is_set():
                        self._setup = msgspec.structs.replace(self._setup, port=port)  # the next process listens on the same port
                        self.address = Address(self._bind.host, port)
                        log.info("history listens on %s (Arrow Flight)", self.address)
                        self._is_up.set()
                    case messages.CannotListen(detail):
                        self._setup = msgspec.structs.replace(self._setup, port=self._bind.port)
                        reason = f"it cannot serve {self._bind}: {detail}"
                    case messages.Served():
                        self._note_served(message)
                    case messages.Backlogs(number, found) if self._counted is not None and number == self._asked:
                        if not self._counted.done():
                            self._counted.set_result(found)
                    case messages.Own(number, answer):
                        asked = self._owns.get(number)
                        if asked is not None and not asked.done():
                            asked.set_result(answer)
        except (BraidError, OSError) as problem:
            reason = str(problem)
        finally:
            self._conversation = None
            conversation.close()
            for each in self._owns.values():
                if not each.done():
                    each.set_exception(Unavailable("its history service has ended", _FIRST_PAUSE_S))
            status = await _ended(process)
            self.process_id = None
            self._before = msgspec.structs.replace(self.served, streams=0)
        return reason or f"its process ended with status {status}"

    def _note_served(self, served: messages.Served) -> None:
        before = self._before
        self.served = messages.Served(
            before.rows + served.rows,
            before.size_bytes + served.size_bytes,
            served.streams,
            before.refused + served.refused,
            before.connections_refused + served.connections_refused,
        )


class Conversation:
    """The node's end of the socket: receives messages, and answers each question in its own task."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: Answers) -> None:
        self._reader = reader
        self._writer = writer
        self._answers = answers
        self._tasks: set[asyncio.Task[None]] = set()
        self._room = asyncio.Semaphore(_QUESTIONS_MAX)

    def send(self, message: messages.FromNode) -> None:
        """Send without waiting: messages in this direction are small, and the service has asked for them."""
        self._writer.write(messages.frame(message))

    def __aiter__(self) -> Conversation:
        return self

    async def __anext__(self) -> messages.Listening | messages.CannotListen | messages.Served | messages.Backlogs | messages.Own:
        while True:
            try:
                head = await self._reader.readexactly(messages.LENGTH_BYTES)
                data = await self._reader.readexactly(messages.length_of(head))
            except (asyncio.IncompleteReadError, ConnectionError):
                raise StopAsyncIteration from None
            message = messages.from_service(data)
            if not isinstance(message, messages.Question):
                return message
            await self._room.acquire()
            task = asyncio.get_running_loop().create_task(self._answer(message))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, question: messages.Question) -> None:
        try:
            answer = await self._answers.to(question.question)
        except Exception:
            log.exception("a request of the history service failed")
            answer = messages.Denied("the broker failed internally; see its log")
        finally:
            self._room.release()
        if not self._writer.is_closing():
            self.send(messages.Answer(question.number, answer))

    def close(self) -> None:
        """Close the socket, which tells the service to exit."""
        for task in self._tasks:
            task.cancel()
        self._writer.close()


async def _ended(process: asyncio.subprocess.Process) -> int:
    """The exit status of a process that was told to exit; kills it if it does not."""
    try:
        async with asyncio.timeout(_STOP_S):
            return await process.wait()
    except TimeoutError:
        process.kill()
        return await process.wait()
