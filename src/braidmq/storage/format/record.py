"""The value of a record, version 1; its key holds the timestamp (`rows.py`).

    version (1) = 1
    flags (1)               bits 0-1 QoS, 2 retain, 3 session only, 4 published-at, 5 expiry, 6 properties; bit 7 is 0
    topic length (2), publisher length (2)
    topic, publisher        UTF-8
    published at (8)        if bit 4; otherwise it is the record's own timestamp
    expires at (8), expiry offset (4)      if bit 5: wall clock; where Message Expiry Interval is in the properties, -1: absent
    length (4), properties  if bit 6: forwardable properties in wire form
    payload                 the rest

Integers are big-endian, times are microseconds since 1970. An ordinary record has six bytes more than its topic, publisher
and payload. The code is in the lane, because every recorded message passes through it twice.
"""

from __future__ import annotations

from braidmq.lane.records.records import VALUE_BYTES_MAX, VERSION, Record, encode_record

__all__ = ["VALUE_BYTES_MAX", "VERSION", "Record", "decode_record", "encode_record"]


def decode_record(timestamp: int, value: bytes) -> Record:
    """The record with this timestamp and value; Corruption if it is invalid, UsageError if a newer version wrote it."""
    return Record(timestamp, value)
