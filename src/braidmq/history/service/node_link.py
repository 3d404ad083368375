"""The service's link to the node: requests from any thread, which block until the answer arrives."""

from __future__ import annotations

import itertools
import logging
import queue
import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final, TypeVar

from braidmq.base.errors import Corruption
from braidmq.flight.wire import Problem
from braidmq.history import messages
from braidmq.history.service.errors import HistoryError

log = logging.getLogger("braidmq.history")

# A node that does not answer within ten seconds counts as unavailable.
_ANSWER_BEATS: Final = 20
_BEAT_S: Final = 0.5  # wait in pieces: if the machine is suspended, only one piece is lost, and the answer may have arrived

# Questions of other cores at a time; each is as much work as a call of a reader.
_FOR_CORES_MAX: Final = 8

Answer = TypeVar("Answer", bound=messages.AnyAnswer)


class NodeLink:
    """The service's end of the socket. Call `setup` first, then `listen` in a thread; `ask` and `tell` from any thread."""

    def __init__(self, conversation: socket.socket) -> None:
        self._socket = conversation
        self._sending = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[messages.AnyAnswer | None]] = {}
        self._is_over = False
        # Set by the server; until then, nothing can be counted.
        self.count_backlogs: Callable[[Sequence[messages.ReaderAt]], list[messages.Behind]] | None = None
        self._counting = threading.Lock()
        self.answer_core: Callable[[bytes], bytes] | None = None  # set by the server, if there are other cores
        self._for_cores = ThreadPoolExecutor(_FOR_CORES_MAX, "for-cores")

    def setup(self) -> messages.Setup:
        """The first message of the node."""
        message = self._receive()
        if not isinstance(message, messages.Setup):
            raise Corruption("the node did not send its set-up first")
        return message

    def listen(self, on_end: Callable[[], None]) -> None:
        """Receive answers until the node closes the socket; then all waiting requests fail, and `on_end` is called."""
        try:
            while (message := self._receive()) is not None:
                if isinstance(message, messages.Answer) and message.number in self._waiting:
                    self._waiting[message.number].put(message.answer)
                elif isinstance(message, messages.AskBacklogs):
                    self._answer_backlogs(message)
                elif isinstance(message, messages.AskOwn):
                    self._for_cores.submit(self._answer_own, message)
        except OSError:
            pass  # same as the end of the stream
        self._is_over = True
        for waiting in list(self._waiting.values()):
            waiting.put(None)
        on_end()

    def ask(self, question: messages.AnyQuestion, kind: type[Answer]) -> Answer:
        """Ask the node; raises HistoryError `unavailable`, `forbidden` if denied, `bad-request` if the question is too long."""
        number = next(self._numbers)
        framed = messages.frame(messages.Question(number, question))
        if len(framed) > messages.QUESTION_BYTES_MAX:
            raise HistoryError(Problem("bad-request", f"a request must not exceed {messages.QUESTION_BYTES_MAX // 1024} KiB"))
        waiting: queue.SimpleQueue[messages.AnyAnswer | None] = queue.SimpleQueue()
        self._waiting[number] = waiting
        try:
            self._send(framed)
            answer = None if self._is_over else _wait(waiting)
        except (OSError, queue.Empty):
            answer = None
        finally:
            del self._waiting[number]
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, messages.Denied):
            raise HistoryError(Problem("forbidden", answer.detail))
        if isinstance(answer, messages.CoreAway):
            raise HistoryError(Problem("unavailable", answer.detail))
        raise HistoryError(Problem("unavailable", "the broker does not answer the history service; try again"))

    def _answer_backlogs(self, question: messages.AskBacklogs) -> None:
        """Count in a thread, one question at a time: counting takes as long as a read, and this thread receives answers."""
        if self.count_backlogs is None or not self._counting.acquire(blocking=False):
            self.tell(messages.Backlogs(question.number, []))
            return
        threading.Thread(target=self._count, args=(question, self.count_backlogs), name="backlogs", daemon=True).start()

    def _count(
        self, question: messages.AskBacklogs, count: Callable[[Sequence[messages.ReaderAt]], list[messages.Behind]]
    ) -> None:
        found: list[messages.Behind] = []
        try:
            found = count(question.readers)
        except HistoryError as problem:
            log.warning("the history service cannot report the lag of readers: %s", problem)
        except Exception:
            log.exception("the history service cannot report the lag of readers")
        finally:
            self._counting.release()
        with suppress(OSError):  # the node has exited and no longer needs the answer
            self.tell(messages.Backlogs(question.number, found))

    def _answer_own(self, question: messages.AskOwn) -> None:
        """Answer another core; without an answer, its node gives up in time."""
        if self.answer_core is None:
            return
        try:
            answer = self.answer_core(question.request)
        except Exception:
            log.exception("a question from another core failed")
            return
        with suppress(OSError):  # the node has exited
            self.tell(messages.Own(question.number, answer))

    def tell(self, message: messages.FromService) -> None:
        """Send a message that has no answer."""
        self._send(messages.frame(message))

    def _send(self, framed: bytes) -> None:
        with self._sending:
            self._socket.sendall(framed)

    def _receive(self) -> messages.FromNode | None:
        head = self._read(messages.LENGTH_BYTES)
        return messages.from_node(self._read(messages.length_of(head))) if head else None

    def _read(self, count: int) -> bytes:
        """Read this many bytes; empty at the end of the stream."""
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                return b""
            data += piece
        return data


def _wait(waiting: queue.SimpleQueue[messages.AnyAnswer | None]) -> messages.AnyAnswer | None:
    """Wait for an item until the time limit; raises ``queue.Empty``."""
    for _ in range(_ANSWER_BEATS - 1):
        try:
            return waiting.get(timeout=_BEAT_S)
        except queue.Empty:
            pass
    return waiting.get(timeout=_BEAT_S)
