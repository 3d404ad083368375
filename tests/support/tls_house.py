"""A TLS listener with certificates of its own, and clients that try it."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import NameOID

from braidmq.base.config.settings import ListenerSettings
from tests.support.certificates import Pair
from tests.support.echo_listeners import LOOPS, EchoHouse

CN, O, OU = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME, NameOID.ORGANIZATIONAL_UNIT_NAME  # noqa: E741

both_loops = pytest.mark.parametrize("loop_name", LOOPS)


def secured(server: Pair, **keys: Any) -> ListenerSettings:
    return ListenerSettings(bind="127.0.0.1:0", cert_file=server.cert_file, key_file=server.key_file, **keys)


def content(file_name: str) -> str:
    return Path(file_name).read_text()


async def echo(house: EchoHouse, context: ssl.SSLContext, server_name: str = "localhost") -> ssl.SSLObject:
    """Connect, have a word echoed, leave; raises what the client sees of a rejected handshake."""
    reader, writer = await asyncio.open_connection(*house.address("tls:default"), ssl=context, server_hostname=server_name)
    try:
        writer.write(b"word")
        assert await reader.readexactly(4) == b"word"
        tls: ssl.SSLObject = writer.get_extra_info("ssl_object")
        return tls
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def assert_refused(house: EchoHouse, context: ssl.SSLContext, reason: str, server_name: str = "localhost") -> None:
    """The client fails, the reason is counted, no connection was made and the place is free again."""
    made, counted = len(house.connections), house.refusals[reason]
    with pytest.raises((OSError, asyncio.IncompleteReadError)):
        await echo(house, context, server_name)
    await house.until(lambda: house.refusals[reason] == counted + 1 and house.live("tls:default") == 0)
    assert len(house.connections) == made
