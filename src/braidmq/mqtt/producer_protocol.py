"""The protocol of idempotent producers: user properties of CONNECT, CONNACK and PUBLISH.

docs/producers.md describes the protocol; `broker/messages/producers.py` is its server side, `spark/sink` a client.
"""

from __future__ import annotations

from typing import Final
from zlib import crc32

from msgspec import Struct

# In CONNECT, and SEQUENCE in CONNACK as well.
SEQUENCE: Final = "producer-sequence"
SKIP: Final = "producer-skip"
REFUSALS: Final = "producer-refusals"
KEYS: Final = "producer-keys"
NAME: Final = "producer-name"
PART: Final = "producer-part"
# In CONNACK.
CHECK: Final = "producer-check"
PARTS: Final = "producer-parts"
SHARDS: Final = "shards"
# In PUBLISH.
KEY: Final = "producer-key"

# Values of REFUSALS: what happens to the messages after a rejected one.
GO_ON: Final = "pass"
STOP: Final = "stop"

SEQUENCE_MAX: Final = 2**63 - 1
PART_MAX: Final = 2**31 - 1
CLIENT_ID_BYTES_MAX: Final = 1000
NAME_BYTES_MAX: Final = 512
KEY_BYTES_MAX: Final = 128

# The bytes of a message's key property before the length of the key: identifier, length of the name, name.
KEY_HEAD: Final = b"\x26" + len(KEY).to_bytes(2, "big") + KEY.encode()


class Request(Struct, frozen=True):
    """What a producer requests in its CONNECT."""

    base: int  # the sequence before the first that it may use
    skip: tuple[int, int] = (0, 0)  # sequences that it abandons, first and last
    stops: bool = False  # after a rejected message, all later ones are rejected as well
    name: str = ""  # of the batches that it publishes for
    is_keyed: bool = False  # its messages have keys, which belong to that name
    part: int = -1  # which part of that name it is; -1: not given

    def user_properties(self) -> dict[str, str]:
        """The request as user properties of a CONNECT."""
        given = {SEQUENCE: str(self.base)}
        if self.stops:
            given[REFUSALS] = STOP
        if self.name:
            given[KEYS if self.is_keyed else NAME] = self.name
        if self.part >= 0:
            given[PART] = str(self.part)
        if self.skip != (0, 0):
            given[SKIP] = f"{self.skip[0]}-{self.skip[1]}"
        return given


def message_check(topic: bytes, payload: bytes) -> int:
    """The check value of a message, which tells a producer that the broker has the same one; `lane` computes it too."""
    return crc32(payload, crc32(topic))


def write_check(check: int) -> str:
    """A check value in the form that CONNACK uses."""
    return f"{check:08x}"


def read_check(text: str) -> int:
    """Parse a check value of a CONNACK; raises ValueError."""
    return int(text, 16)
