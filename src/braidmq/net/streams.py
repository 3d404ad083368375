"""The bytes of a connected socket, plain or with TLS, without waiting.

Connections between nodes do not use asyncio's transports. A transport closes its socket at the first error of a write, and
what the peer had sent before its end is lost, unread. With these streams either direction ends on its own (C30).
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from itertools import accumulate
from typing import Final, Protocol

from braidmq.net.write_queue import Buffer

_RECORD_BYTES: Final = 16 * 1024
_BATCH_BYTES: Final = 256 * 1024


class Stream(Protocol):
    """A non-blocking socket. Every method raises OSError if the direction it uses has ended with an error."""

    @property
    def socket(self) -> socket.socket: ...

    @property
    def is_ready(self) -> bool: ...

    @property
    def has_more(self) -> bool: ...

    def begin(self) -> bool:
        """Take a step before the first byte; True if it waits for the socket to become writable. Until ``is_ready``."""
        ...

    def receive_into(self, buffer: memoryview) -> int | None:
        """Read; the number of bytes, 0 at the end of the stream, None if nothing is there now."""
        ...

    def send(self, buffers: Sequence[Buffer]) -> int:
        """Write; the number of bytes taken, 0 if the socket is full."""
        ...

    def end_writing(self) -> None:
        """Tell the peer that nothing more comes; reading goes on."""
        ...


class PlainStream:
    """A socket as it is."""

    is_ready = True
    has_more = False

    def __init__(self, connected: socket.socket) -> None:
        connected.setblocking(False)
        self.socket = connected

    def begin(self) -> bool:
        """Nothing is needed."""
        return False

    def receive_into(self, buffer: memoryview) -> int | None:
        """Read once."""
        try:
            return self.socket.recv_into(buffer)
        except (BlockingIOError, InterruptedError):
            return None

    def send(self, buffers: Sequence[Buffer]) -> int:
        """Write once."""
        try:
            return self.socket.sendmsg(buffers)
        except (BlockingIOError, InterruptedError):
            return 0

    def end_writing(self) -> None:
        """Shut the socket down for writing."""
        self.socket.shutdown(socket.SHUT_WR)


class TlsStream:
    """A socket with TLS; ``is_ready`` after the handshake."""

    def __init__(self, connected: socket.socket, context: ssl.SSLContext, server_hostname: str | None) -> None:
        """``server_hostname``: whom this side connects to; None for the accepting side."""
        connected.setblocking(False)
        self.is_ready = False
        self.socket: ssl.SSLSocket = context.wrap_socket(
            connected,
            server_side=server_hostname is None,
            server_hostname=server_hostname,
            do_handshake_on_connect=False,
        )

    @property
    def has_more(self) -> bool:
        """Bytes are decrypted and not read: the socket will not become readable for them."""
        return self.is_ready and self.socket.pending() > 0

    def begin(self) -> bool:
        """Take a step of the handshake."""
        try:
            self.socket.do_handshake()
        except ssl.SSLWantReadError:
            return False
        except ssl.SSLWantWriteError:
            return True
        self.is_ready = True
        return False

    def receive_into(self, buffer: memoryview) -> int | None:
        """Read all records that have arrived, as far as there is room."""
        done = 0
        while done < len(buffer):
            try:
                size = self.socket.recv_into(buffer[done:])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return done or None
            except OSError:
                if done:
                    return done  # the next read finds the error again
                raise
            if size == 0:
                break
            done += size
        return done

    def send(self, buffers: Sequence[Buffer]) -> int:
        """Write records, until the socket is full."""
        # A retry offers at least what the call before it did, since buffers are only ever added behind.
        ends = accumulate(map(len, buffers))
        last = next((number for number, end in enumerate(ends, 1) if end >= _BATCH_BYTES), len(buffers))
        data = memoryview(b"".join(buffers[:last]) if last > 1 else buffers[0])
        done = 0
        while done < len(data):
            try:
                done += self.socket.send(data[done : done + _RECORD_BYTES])
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
        return done

    def end_writing(self) -> None:
        """Shut the socket itself down: ``SSLSocket.shutdown`` would also forget how to decrypt what still comes."""
        socket.socket.shutdown(self.socket, socket.SHUT_WR)
