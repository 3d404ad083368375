"""A WebSocket that looks like a TCP connection to its asyncio protocol: frame boundaries have no meaning in MQTT."""

from __future__ import annotations

import asyncio
from typing import Any

import picows


class WebSocketTransport(asyncio.Transport):
    """Writes binary frames; each ``write`` becomes one frame."""

    def __init__(self, websocket: picows.WSTransport) -> None:
        super().__init__()
        self._websocket = websocket

    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        """Send the data as one binary frame."""
        self._websocket.send(picows.WSMsgType.BINARY, data)

    def is_closing(self) -> bool:
        """True once the connection is being closed."""
        return self._websocket.underlying_transport.is_closing()

    def close(self) -> None:
        """Send CLOSE and close when everything is sent."""
        self._websocket.send_close(picows.WSCloseCode.OK)
        self._websocket.disconnect()

    def abort(self) -> None:
        """Close at once."""
        self._websocket.disconnect(graceful=False)

    def pause_reading(self) -> None:
        """Stop reading; data stays in the socket."""
        self._websocket.underlying_transport.pause_reading()

    def resume_reading(self) -> None:
        """Resume reading."""
        self._websocket.underlying_transport.resume_reading()


class WebSocketListener(picows.WSListener):
    """Passes the content of binary frames to the protocol."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self._protocol = protocol
        self.is_open = False

    def on_ws_connected(self, transport: picows.WSTransport) -> None:
        """The handshake is done."""
        self.is_open = True
        self._protocol.connection_made(WebSocketTransport(transport))

    def on_ws_frame(self, transport: picows.WSTransport, frame: picows.WSFrame) -> None:
        """A frame has arrived; only binary ones are valid [MQTT-6.0.0-1], and a CLOSE is answered."""
        match frame.msg_type:
            case picows.WSMsgType.BINARY | picows.WSMsgType.CONTINUATION:
                self._protocol.data_received(frame.get_payload_as_bytes())
            case picows.WSMsgType.PING | picows.WSMsgType.PONG:
                pass
            case _:
                transport.send_close(picows.WSCloseCode.OK)
                transport.disconnect()

    def on_ws_disconnected(self, transport: picows.WSTransport) -> None:
        """The connection is closed."""
        if self.is_open:
            self._protocol.connection_lost(None)

    def pause_writing(self) -> None:
        """The server reads too slowly."""
        self._protocol.pause_writing()

    def resume_writing(self) -> None:
        """The server reads again."""
        self._protocol.resume_writing()
