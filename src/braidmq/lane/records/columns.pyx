# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records as columns in the memory layout of Arrow: filtered and decoded in one pass over a store's iterator.

The compiled form; ``columns.py`` is its plain twin and has the contract of everything here. A field is copied once, from the
value that the store's iterator returned to the block that Arrow will read, without creating an object for it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from braidmq.base.errors import Corruption
from braidmq.base.history_columns import Kind, sources

from braidmq.lane.records.arrow_buffers cimport Column, Flags, Numbers, Pairs, Variable
from braidmq.lane.records.big_endian cimport get16, get32, get64
from braidmq.lane.records.records cimport TopicFilters, check_value
from braidmq.lane.records.seek cimport SEEK_SKIP, SEEK_TAKE, Seek, examine_at

from braidmq.lane.records.seek import FAR, PAUSED

RAN_OUT = 3

NARROW = (*sources(Kind.INT32), "size")  # of 32 bits
NUMBERS = (*NARROW, *sources(Kind.INT64, Kind.TIME))
FLAGS = sources(Kind.FLAG)
TEXTS = sources(Kind.TEXT)
BINARIES = sources(Kind.BINARY)
PAIRS = sources(Kind.PAIRS)
NAMES = (*NUMBERS, *FLAGS, *TEXTS, *BINARIES, *PAIRS)

cdef enum:
    KEY_BYTES = 12
    HEADER_BYTES = 6
    F_RETAIN = 4
    F_PUBLISHED_AT = 16
    F_EXPIRY = 32
    F_PROPERTIES = 64


cdef Column make_column(str name):
    if name in PAIRS:
        return Pairs()
    if name in FLAGS:
        return Flags()
    if name in NUMBERS:
        return Numbers(4 if name in NARROW else 8)
    return Variable(name in TEXTS)



cdef class Columns:
    cdef readonly long long size_bytes
    cdef Py_ssize_t rows
    cdef dict columns  # by name; each is also a field below, None if it is not selected
    cdef bint wants_properties
    cdef Variable topic, payload, client_id, content_type, response_topic, correlation_data
    cdef Numbers qos, publish_timestamp, payload_format, expires_at, position, size
    cdef Pairs user_properties
    cdef Flags retain

    def __init__(self, wanted):
        cdef dict columns
        unknown = set(wanted) - set(NAMES)
        if unknown:
            raise ValueError(f"no columns {sorted(unknown)}")
        self.columns = columns = {name: make_column(name) for name in wanted}
        self.topic = columns.get("topic")
        self.payload = columns.get("payload")
        self.client_id = columns.get("client_id")
        self.content_type = columns.get("content_type")
        self.response_topic = columns.get("response_topic")
        self.correlation_data = columns.get("correlation_data")
        self.qos = columns.get("qos")
        self.payload_format = columns.get("payload_format")
        self.size = columns.get("size")
        self.publish_timestamp = columns.get("publish_timestamp")
        self.expires_at = columns.get("expires_at")
        self.position = columns.get("position")
        self.retain = columns.get("retain")
        self.user_properties = columns.get("user_properties")
        self.wants_properties = (
            self.content_type is not None or self.response_topic is not None or self.correlation_data is not None
            or self.payload_format is not None or self.user_properties is not None)

    def __len__(self):
        return self.rows

    def collect(self, pairs, query, TopicFilters filters not None, TopicFilters excluded, long long after, long long upto,
                Py_ssize_t rows_max, long long bytes_max, Py_ssize_t steps_max):
        cdef bytes key = b"", value
        cdef Py_ssize_t step, width = 0
        cdef const uint8_t* p = NULL
        cdef const uint8_t* v
        cdef long long timestamp
        cdef tuple pair
        cdef int verdict
        cdef Seek seek = None if query is None else Seek(query)
        for step in range(steps_max):
            if self.rows >= rows_max or self.size_bytes >= bytes_max:
                break
            pair = next(pairs, None)
            if pair is None:
                return RAN_OUT, key
            key, value = pair
            if PyBytes_GET_SIZE(key) < KEY_BYTES:
                raise Corruption("the key of a record is truncated")
            p = <const uint8_t*>PyBytes_AS_STRING(key) + 8
            width = PyBytes_GET_SIZE(key) - KEY_BYTES
            if seek is not None:
                verdict = examine_at(seek, p, width)
                if verdict == SEEK_SKIP:
                    continue
                if verdict != SEEK_TAKE:
                    return verdict, seek.target
            timestamp = <long long>get64(p - 8) + get32(p + width)
            if after < timestamp <= upto:
                check_value(value)
                v = <const uint8_t*>PyBytes_AS_STRING(value)
                if filters.match_value(value) and (
                        excluded is None or not excluded.match(<const char*>v + HEADER_BYTES, get16(v + 2))):
                    self.add(v, PyBytes_GET_SIZE(value), timestamp, PyBytes_GET_SIZE(key))
        if seek is not None and p != NULL and seek.is_ahead_of(p, width):
            return FAR, seek.target
        return PAUSED, key

    cdef int add(self, const uint8_t* v, Py_ssize_t value_size, long long timestamp, Py_ssize_t key_size) except -1:
        """Add a row for a value that `check_value` has accepted."""
        cdef Py_ssize_t row = self.rows, topic_size = get16(v + 2), publisher_size = get16(v + 4), properties_size = 0
        cdef const uint8_t* p = v + HEADER_BYTES
        cdef int flags = v[1]
        cdef long long published_at = timestamp
        if self.topic is not None:
            self.topic.add(row, p, topic_size)
        p += topic_size
        if self.client_id is not None:
            self.client_id.add(row, p, publisher_size)
        p += publisher_size
        if flags & F_PUBLISHED_AT:
            published_at = <long long>get64(p)
            p += 8
        if flags & F_EXPIRY:
            if self.expires_at is not None and get64(p):
                self.expires_at.add(row, <long long>get64(p))
            p += 12
        if flags & F_PROPERTIES:
            properties_size = get32(p)
            p += 4
            if self.wants_properties:
                self.add_properties(row, p, p + properties_size)
            p += properties_size
        if self.payload is not None:
            self.payload.add(row, p, v + value_size - p)
        if self.qos is not None:
            self.qos.add(row, flags & 3)
        if self.retain is not None:
            self.retain.add(row, flags & F_RETAIN != 0)
        if self.publish_timestamp is not None:
            self.publish_timestamp.add(row, published_at)
        if self.position is not None:
            self.position.add(row, timestamp)
        if self.size is not None:
            self.size.add(row, key_size + value_size)
        self.rows = row + 1
        self.size_bytes += key_size + value_size
        return 0

    cdef int add_properties(self, Py_ssize_t row, const uint8_t* p, const uint8_t* end) except -1:
        cdef int identifier, payload_format = -1
        cdef const uint8_t* texts[3]  # content type, response topic, correlation data; at their lengths
        cdef const uint8_t* name
        cdef Py_ssize_t count = 0
        texts[0] = texts[1] = texts[2] = NULL
        while p < end:
            identifier = p[0]
            p += 1
            if identifier == 0x26:
                name = p
                p = behind_text(p, end)
                if self.user_properties is not None:
                    behind_text(p, end)
                    self.user_properties.add(name + 2, get16(name), p + 2, get16(p))
                    count += 1
                p = behind_text(p, end)
            elif identifier == 0x03 or identifier == 0x08 or identifier == 0x09:
                texts[0 if identifier == 0x03 else identifier - 7] = p
                p = behind_text(p, end)
            elif identifier == 0x01:
                payload_format = p[0] if p < end else -1
                p += 1
            elif identifier == 0x02:
                p += 4
            elif identifier == 0x23:
                p += 2
            elif identifier == 0x0B:
                while p < end and p[0] & 0x80:
                    p += 1
                p += 1
            else:
                raise Corruption(f"a record has property 0x{identifier:02X}, which is not a property of messages")
        if p > end:
            raise Corruption("the properties of a record are truncated")
        if count:
            self.user_properties.close(row, count)
        if payload_format >= 0 and self.payload_format is not None:
            self.payload_format.add(row, payload_format)
        if texts[0] != NULL and self.content_type is not None:
            self.content_type.add(row, texts[0] + 2, get16(texts[0]))
        if texts[1] != NULL and self.response_topic is not None:
            self.response_topic.add(row, texts[1] + 2, get16(texts[1]))
        if texts[2] != NULL and self.correlation_data is not None:
            self.correlation_data.add(row, texts[2] + 2, get16(texts[2]))
        return 0

    def take(self):
        cdef Column column
        taken = {}
        for name, column in self.columns.items():
            taken[name] = column.take(self.rows)
        self.rows = 0
        self.size_bytes = 0
        return taken


cdef const uint8_t* behind_text(const uint8_t* p, const uint8_t* end) except NULL:
    """The address after a text or binary value whose length is at `p`."""
    if p + 2 > end or p + 2 + get16(p) > end:
        raise Corruption("the properties of a record are truncated")
    return p + 2 + get16(p)
