"""MQTT over WebSocket: picows speaks the framing, and the bytes go to an ordinary connection.

``WebSocketChannel`` stands in the middle. To picows it is the listener of one WebSocket, to the connection it is the transport:
every ``write`` becomes one binary frame, every binary frame is fed on in order. MQTT does not care where frames begin and end
[MQTT-6.0.0-2], so fragments and several packets in one frame need no assembly here.

Memory. picows keeps a frame until it is whole, and its read buffer grows with what has arrived and never shrinks. Three bounds
keep that small: a frame may have ``frame_bytes_max``; until the broker has answered the CONNECT no more than
``unanswered_bytes_max`` may arrive at all; and one read takes at most ``READ_BYTES_MAX``, or a fast sender would make
the buffer as large as the kernel's.

Closing. Either side may begin. After our close frame we wait for the peer's, reading on and discarding, because
closing a socket with unread bytes resets it and the peer might never see why. ``CLOSE_WAIT_S`` bounds the wait.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from picows import (
    WSAutoPingStrategy,
    WSCloseCode,
    WSFrame,
    WSListener,
    WSMsgType,
    WSTransport,
    WSUpgradeRequest,
    WSUpgradeResponse,
    WSUpgradeResponseWithListener,
)
from picows.picows import WSProtocol  # type: ignore[attr-defined]  # the server half of ws_create_server, for sockets of our own

from braidmq.base.deadline_clock import after_reading
from braidmq.broker.listeners.origin import FedConnection, ListenerInfo, MakeConnection
from braidmq.broker.listeners.web_origins import WebOrigins

logger = logging.getLogger("braidmq.listeners")

# "mqtt" is the registered name [MQTT-6.0.0-3]; old clients of MQTT 3.1 ask for the other.
SUBPROTOCOLS = ("mqtt", "mqttv3.1")
READ_BYTES_MAX = 64 * 1024
READ_BUFFER_BYTES = 2048  # where the read buffer begins; an idle client never needs more
CLOSE_WAIT_S = 3.0
LOGGED_ORIGIN_MAX = 100  # characters of an Origin that may be as long as the request

# Members of an enumeration are looked up slowly, and these are needed for every frame.
_BINARY, _TEXT, _CLOSE, _PING = WSMsgType.BINARY, WSMsgType.TEXT, WSMsgType.CLOSE, WSMsgType.PING
_DATA = (_BINARY, WSMsgType.CONTINUATION)

# Above this size picows gives the loop a view of a header buffer that its next frame overwrites.
_SMALL_FRAME_BYTES = 8192


class WebSocketSettings(msgspec.Struct, frozen=True):
    """What the WebSockets of one listener have in common; ``on_refused`` takes the listener's id and a reason."""

    path: str
    origins: WebOrigins
    handshake_timeout_s: float
    frame_bytes_max: int
    unanswered_bytes_max: int
    make_connection: MakeConnection
    on_refused: Callable[[str, str], None]


class _PicowsLog(logging.LoggerAdapter[logging.Logger]):
    """Takes the log lines of picows: mistakes of peers are not errors of the broker, and its lines per connection are dropped."""

    def info(self, msg: object, *args: object, **_: Any) -> None:
        """Drop it."""

    def error(self, msg: object, *args: object, **_: Any) -> None:
        """A violation of the framing by the peer."""
        self.logger.info(f"websocket: {msg}", *args)


_picows_log = _PicowsLog(logger, {})


class WebSocketChannel(WSListener):
    """One WebSocket: the transport of its connection, with the methods of ``asyncio.Transport`` that a connection uses."""

    __slots__ = (
        "_close_timer",
        "_connection",
        "_is_closing",
        "_is_in_message",
        "_is_lost",
        "_is_writing_paused",
        "_listener",
        "_settings",
        "_unanswered",
        "_waiting",
        "_ws",
    )

    def __init__(self, settings: WebSocketSettings, listener: ListenerInfo) -> None:
        self._settings = settings
        self._listener = listener
        self._ws: WSTransport | None = None
        self._connection: FedConnection | None = None
        self._close_timer: asyncio.TimerHandle | None = None
        self._is_closing = False
        self._is_in_message = False
        self._is_lost = False
        self._is_writing_paused = False
        self._waiting: list[bytes] = []  # payloads of this turn that are still to be fed
        self._unanswered = 0  # bytes that arrived before our first answer; -1 after it

    # What picows calls.

    def upgrade(self, request: WSUpgradeRequest) -> WSUpgradeResponseWithListener:
        """Answer the request: 404 for another path, 403 for a forbidden web page, 400 without a known subprotocol, else 101."""
        if request.path.partition(b"?")[0] != self._settings.path.encode():
            return self._refuse(404, "ws_path", "no such path")
        origins = request.headers.getall("Origin", ())
        if not self._settings.origins.admits(origins, request.headers.getall("Host", ()), is_local=self._listener.is_local):
            shown = ", ".join(origins)[:LOGGED_ORIGIN_MAX]
            return self._refuse(403, "ws_origin", f"pages from {shown!r} may not connect, see origins of the listener")
        subprotocol = choose_subprotocol(request.headers.getall("Sec-WebSocket-Protocol", ()))
        if subprotocol is None:
            return self._refuse(400, "ws_subprotocol", 'the WebSocket subprotocol must be "mqtt"')
        # Firefox sends "keep-alive, Upgrade", which RFC 6455 allows and picows does not know.
        if has_token(request.headers.getall("Connection", ()), "upgrade"):
            request.headers["Connection"] = "Upgrade"
        response = WSUpgradeResponse.create_101_response({"Sec-WebSocket-Protocol": subprotocol})
        return WSUpgradeResponseWithListener(response, self)

    def on_ws_connected(self, transport: WSTransport) -> None:
        """The WebSocket is open: make the connection that speaks MQTT on it."""
        self._ws = transport
        # picows keeps both as long as the connection lives; nothing reads them again, and they are a large part of its memory.
        transport.request.headers.clear()
        transport.response.headers.clear()
        self._connection = self._settings.make_connection(self._listener)
        self._connection.connection_made(self)  # type: ignore[arg-type]  # a transport by its methods, not by its class

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        """Feed binary data on, all that one read brought at once; answer the rest."""
        kind = frame.msg_type
        if self._is_closing:
            if kind == _CLOSE:
                transport.disconnect()
            return
        if kind in _DATA:
            # A message begins with a binary frame and goes on with continuations until one has FIN; no extension was agreed.
            if self._is_in_message == (kind == _BINARY) or frame.rsv1 or frame.rsv2 or frame.rsv3:
                self._fail(WSCloseCode.PROTOCOL_ERROR, "ws_framing")
                return
            self._is_in_message = not frame.fin
            self._waiting.append(frame.get_payload_as_bytes())
            if frame.last_in_buffer:
                self._feed()
            return
        self._feed()
        if self.is_closing():
            return
        if kind == _PING:
            # A peer that sends pings and reads no answers must not fill our memory with pongs; RFC 6455 lets us skip some.
            if not self._is_writing_paused:
                transport.send_pong(frame.get_payload_as_bytes())
        elif kind == _CLOSE:
            self._is_closing = True
            transport.send_close(WSCloseCode.OK)
            transport.disconnect()
        elif kind == _TEXT:
            self._fail(WSCloseCode.UNSUPPORTED_DATA, "ws_text")  # [MQTT-6.0.0-1]

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        """The socket is gone."""
        connection, self._connection = self._connection, None
        self._is_closing = True
        self._waiting.clear()
        if connection is not None:
            connection.connection_lost(None)

    def pause_writing(self) -> None:
        """The transport's buffer is above its high-water mark."""
        self._is_writing_paused = True
        if self._connection is not None:
            self._connection.pause_writing()

    def resume_writing(self) -> None:
        """The transport's buffer is below its low-water mark again."""
        self._is_writing_paused = False
        if self._connection is not None:
            self._connection.resume_writing()

    # What the connection calls.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send the bytes as one binary frame."""
        if self._is_closing or self._ws is None:
            return
        self._unanswered = -1
        size = len(data)
        if size <= _SMALL_FRAME_BYTES:
            self._ws.send(_BINARY, data)
        else:
            header = struct.pack(">BBH", 0x82, 126, size) if size < 65536 else struct.pack(">BBQ", 0x82, 127, size)
            self._ws.underlying_transport.write(b"".join((header, data)))

    def writelines(self, chunks: Iterable[bytes | bytearray | memoryview]) -> None:
        """Send all the bytes as one binary frame."""
        self.write(b"".join(chunks))

    def close(self) -> None:
        """Send what is queued and a close frame, then close when the peer has answered or the time limit is reached."""
        self._close(WSCloseCode.OK)

    def abort(self) -> None:
        """Close at once; queued data is lost."""
        self._is_closing = True
        if self._ws is not None:
            self._ws.disconnect(False)

    def is_closing(self) -> bool:
        """Whether either side has begun to close."""
        return self._is_closing or self._ws is None or self._ws.underlying_transport.is_closing()

    def pause_reading(self) -> None:
        """Stop reading the socket; frames that were read already are still fed."""
        if self._ws is not None and not self._is_closing:
            self._ws.underlying_transport.pause_reading()

    def resume_reading(self) -> None:
        """Read the socket again."""
        if self._ws is not None and not self._is_closing:
            self._ws.underlying_transport.resume_reading()

    def get_extra_info(self, name: str, default: object = None) -> Any:
        """Information from the socket's transport."""
        return default if self._ws is None else self._ws.underlying_transport.get_extra_info(name, default)

    def get_write_buffer_size(self) -> int:
        """How many bytes wait to be sent."""
        return 0 if self._ws is None else self._ws.underlying_transport.get_write_buffer_size()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Set the marks at which ``pause_writing`` and ``resume_writing`` are called."""
        if self._ws is not None:
            self._ws.underlying_transport.set_write_buffer_limits(high, low)

    # What the protocol below calls.

    def admits(self, nbytes: int) -> bool:
        """Whether these bytes, just arrived, may be parsed. Before our first answer their sum is bounded."""
        if self._unanswered < 0 or self._connection is None:
            return True
        self._unanswered += nbytes
        if self._unanswered <= self._settings.unanswered_bytes_max:
            return True
        self._fail(WSCloseCode.MESSAGE_TOO_BIG, "ws_size")
        return False

    @property
    def is_expected(self) -> bool:
        """Whether the WebSocket request has not arrived yet."""
        return self._ws is None and not self._is_closing and not self._is_lost

    def lost(self) -> None:
        """The socket is gone; a slot for which no connection was made is released here."""
        self._is_lost = True
        if self._ws is None:
            self._listener.release()
            if not self._is_closing:
                self._settings.on_refused(self._listener.id, "ws_handshake")
        if self._close_timer is not None:
            self._close_timer.cancel()
        self._ws = None

    def _feed(self) -> None:
        waiting = self._waiting
        if waiting and self._connection is not None:
            data = waiting[0] if len(waiting) == 1 else b"".join(waiting)
            waiting.clear()
            self._connection.feed(data)

    def _refuse(self, status: int, reason: str, sentence: str) -> WSUpgradeResponseWithListener:
        self._is_closing = True
        self._settings.on_refused(self._listener.id, reason)
        logger.info("%s: connection refused (%s): %s", self._listener.id, reason, sentence)
        return WSUpgradeResponseWithListener(WSUpgradeResponse.create_error_response(status, sentence.encode()), None)

    def _fail(self, code: WSCloseCode, reason: str) -> None:
        if not self._is_closing:
            self._settings.on_refused(self._listener.id, reason)
        self._close(code)

    def _close(self, code: WSCloseCode) -> None:
        if self._is_closing or self._ws is None:
            return
        self._ws.underlying_transport.resume_reading()
        self._is_closing = True
        self._ws.send_close(code)
        self._close_timer = asyncio.get_running_loop().call_later(CLOSE_WAIT_S, self._ws.disconnect, False)


class WebSocketProtocol(WSProtocol):  # type: ignore[misc]  # picows has no types for it
    """The asyncio protocol of one WebSocket of a listener."""

    __slots__ = ("_channel",)

    def __init__(self, settings: WebSocketSettings, listener: ListenerInfo) -> None:
        self._channel = WebSocketChannel(settings, listener)
        super().__init__(
            host_port=None,
            ws_path=None,
            is_client_side=False,
            ws_listener_factory=self._channel.upgrade,
            logger=_picows_log,
            disconnect_on_exception=True,
            websocket_handshake_timeout=settings.handshake_timeout_s,
            enable_auto_ping=False,
            auto_ping_idle_timeout=0,
            auto_ping_reply_timeout=0,
            auto_ping_strategy=WSAutoPingStrategy.PING_WHEN_IDLE,
            enable_auto_pong=False,
            max_frame_size=settings.frame_bytes_max,
            extra_headers=None,
            read_buffer_init_size=READ_BUFFER_BYTES,
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        buffer: memoryview = WSProtocol.get_buffer(self, sizehint)
        return buffer if len(buffer) <= READ_BYTES_MAX else buffer[:READ_BYTES_MAX]

    def buffer_updated(self, nbytes: int) -> None:
        """Parse what arrived, if it may be kept."""
        if self._channel.admits(nbytes):
            WSProtocol.buffer_updated(self, nbytes)

    def _handshake_timeout_callback(self) -> None:
        # Called by picows when the time is over; a request that has arrived by then is read first.
        after_reading(asyncio.get_running_loop(), self._end_handshake)

    def _end_handshake(self) -> None:
        if self._channel.is_expected:
            WSProtocol._handshake_timeout_callback(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone."""
        WSProtocol.connection_lost(self, exc)
        self._channel.lost()


def choose_subprotocol(offers: Iterable[str]) -> str | None:
    """The subprotocol chosen from the offered ones, ``mqtt`` if it is there [MQTT-6.0.0-4]; headers may repeat and hold lists."""
    offered = {name.strip() for offer in offers for name in offer.split(",")}
    return next((name for name in SUBPROTOCOLS if name in offered), None)


def has_token(values: Iterable[str], token: str) -> bool:
    """Whether the token is in a header that holds comma-separated lists."""
    return any(token == part.strip().lower() for value in values for part in value.split(","))
