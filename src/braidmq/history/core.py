"""The service's side of the conversation: questions to the core, asked from any thread and answered while it waits."""

from __future__ import annotations

import itertools
import queue
import socket
import threading
from collections.abc import Callable
from typing import Final, TypeVar

from braidmq.base.errors import Corruption
from braidmq.flight.wire import Problem
from braidmq.history import messages
from braidmq.history.errors import HistoryError

# A core that is busy for longer than this is not there, for a reader.
_ANSWER_S: Final = 10.0

Answer = TypeVar("Answer", bound=messages.AnyAnswer)


class Core:
    """The other end of the socket. `setup` first, then `listen` in a thread; `ask` and `tell` from any."""

    def __init__(self, conversation: socket.socket) -> None:
        self._socket = conversation
        self._sending = threading.Lock()
        self._numbers = itertools.count(1)
        self._waiting: dict[int, queue.SimpleQueue[messages.AnyAnswer | None]] = {}
        self._is_over = False

    def setup(self) -> messages.Setup:
        """What the core says first."""
        message = self._receive()
        if not isinstance(message, messages.Setup):
            raise Corruption("the core did not begin with its set-up")
        return message

    def listen(self, on_end: Callable[[], None]) -> None:
        """Take answers until the core is gone; then whoever waits is told, and `on_end` is called."""
        try:
            while (message := self._receive()) is not None:
                if isinstance(message, messages.Answer) and message.number in self._waiting:
                    self._waiting[message.number].put(message.answer)
        except OSError:
            pass  # as good as the end
        self._is_over = True
        for waiting in list(self._waiting.values()):
            waiting.put(None)
        on_end()

    def ask(self, question: messages.AnyQuestion, kind: type[Answer]) -> Answer:
        """The answer of this kind; raises HistoryError `unavailable`, `forbidden` for a refusal, `bad-request` if too long."""
        number = next(self._numbers)
        framed = messages.frame(messages.Question(number, question))
        if len(framed) > messages.QUESTION_BYTES_MAX:
            raise HistoryError(Problem("bad-request", f"a request has at most {messages.QUESTION_BYTES_MAX // 1024} KiB"))
        waiting: queue.SimpleQueue[messages.AnyAnswer | None] = queue.SimpleQueue()
        self._waiting[number] = waiting
        try:
            self._send(framed)
            answer = None if self._is_over else waiting.get(timeout=_ANSWER_S)
        except (OSError, queue.Empty):
            answer = None
        finally:
            del self._waiting[number]
        if isinstance(answer, kind):
            return answer
        if isinstance(answer, messages.Denied):
            raise HistoryError(Problem("forbidden", answer.detail))
        raise HistoryError(Problem("unavailable", "the broker does not answer the history service now; try again"))

    def tell(self, message: messages.FromService) -> None:
        """Send a message that has no answer."""
        self._send(messages.frame(message))

    def _send(self, framed: bytes) -> None:
        with self._sending:
            self._socket.sendall(framed)

    def _receive(self) -> messages.FromCore | None:
        head = self._read(messages.LENGTH_BYTES)
        return messages.from_core(self._read(messages.length_of(head))) if head else None

    def _read(self, count: int) -> bytes:
        """So many bytes; none at the end of the stream."""
        data = b""
        while len(data) < count:
            piece = self._socket.recv(count - len(data))
            if not piece:
                return b""
            data += piece
        return data
