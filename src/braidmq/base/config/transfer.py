"""A configuration as bytes, for a child process that must have exactly the parent's."""

from __future__ import annotations

import msgspec

from braidmq.base.config.keys import read_unit
from braidmq.base.config.settings import Settings
from braidmq.base.config.sources import Config
from braidmq.base.units import Bytes, Seconds


class _Transfer(msgspec.Struct, frozen=True):
    settings: Settings
    origins: dict[str, str]
    file: str


def encode_config(config: Config) -> bytes:
    """The values and their origins. They include secrets: pass them through a pipe, never through arguments or variables."""
    return msgspec.msgpack.encode(_Transfer(config.settings, config.origins, config.file), enc_hook=_write_unit)


def decode_config(data: bytes) -> Config:
    """The configuration of `encode_config`; the parent has checked it. Raises ValueError."""
    received = msgspec.msgpack.decode(data, type=_Transfer, dec_hook=read_unit)
    return Config(received.settings, received.origins, [], received.file)


def _write_unit(value: object) -> object:
    match value:
        case Seconds():
            return float(value)
        case Bytes():
            return int(value)
    raise TypeError(f"no such unit: {value!r}")
