# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records of the log as bytes: build one, read fields without decoding all of it, assign timestamps and keys to many.

The compiled form; ``records.py`` is its plain twin and has the contract of everything here.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from braidmq.base.errors import Corruption, UsageError

from braidmq.lane.records.big_endian cimport get16, get32, get64

VERSION = 1
RETAIN, SESSION_ONLY, HAS_PUBLISHED_AT, HAS_EXPIRY, HAS_PROPERTIES = 4, 8, 16, 32, 64
KEY_BYTES = 12
STATIC_ID_BYTES = 4
VALUE_BYTES_MAX = 64 * 1024 * 1024

cdef enum:
    V1 = 1
    F_RETAIN = 4
    F_SESSION_ONLY = 8
    F_PUBLISHED_AT = 16
    F_EXPIRY = 32
    F_PROPERTIES = 64
    HEADER_BYTES = 6
    C_KEY_BYTES = 12
    C_STATIC_ID_BYTES = 4


cdef inline uint8_t* put16(uint8_t* p, uint32_t n) noexcept nogil:
    p[0] = <uint8_t>(n >> 8)
    p[1] = <uint8_t>n
    return p + 2


cdef inline uint8_t* put32(uint8_t* p, uint32_t n) noexcept nogil:
    put16(p, n >> 16)
    return put16(p + 2, n & 0xFFFF)


cdef inline uint8_t* put64(uint8_t* p, uint64_t n) noexcept nogil:
    put32(p, <uint32_t>(n >> 32))
    return put32(p + 4, <uint32_t>n)


cdef inline uint8_t* put_bytes(uint8_t* p, bytes data) noexcept:
    memcpy(p, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
    return p + PyBytes_GET_SIZE(data)


def encode_record(bytes topic not None, bytes payload not None, long long qos, bint retain, str publisher not None,
                  bytes properties not None=b"", long long expires_at=0, long long expiry_offset=-1,
                  long long published_at=0, bint session_only=False):
    cdef bytes name = publisher.encode()
    cdef Py_ssize_t size
    cdef int flags
    cdef bytes value
    cdef uint8_t* p
    if (PyBytes_GET_SIZE(topic) > 0xFFFF or PyBytes_GET_SIZE(name) > 0xFFFF or qos < 0 or qos > 2
            or expires_at < 0 or published_at < 0):
        raise ValueError("a field of a record is out of range")
    flags = <int>qos | (F_RETAIN if retain else 0) | (F_SESSION_ONLY if session_only else 0)
    size = HEADER_BYTES + PyBytes_GET_SIZE(topic) + PyBytes_GET_SIZE(name) + PyBytes_GET_SIZE(payload)
    if published_at:
        flags |= F_PUBLISHED_AT
        size += 8
    if expires_at:
        flags |= F_EXPIRY
        size += 12
    if PyBytes_GET_SIZE(properties):
        flags |= F_PROPERTIES
        size += 4 + PyBytes_GET_SIZE(properties)
    value = PyBytes_FromStringAndSize(NULL, size)
    p = <uint8_t*>PyBytes_AS_STRING(value)
    p[0] = V1
    p[1] = <uint8_t>flags
    p = put16(p + 2, <uint32_t>PyBytes_GET_SIZE(topic))
    p = put16(p, <uint32_t>PyBytes_GET_SIZE(name))
    p = put_bytes(p, topic)
    p = put_bytes(p, name)
    if published_at:
        p = put64(p, <uint64_t>published_at)
    if expires_at:
        p = put64(p, <uint64_t>expires_at)
        p = put32(p, <uint32_t>(expiry_offset & 0xFFFFFFFF))
    if flags & F_PROPERTIES:
        p = put32(p, <uint32_t>PyBytes_GET_SIZE(properties))
        p = put_bytes(p, properties)
    put_bytes(p, payload)
    return value


cdef int check_value(bytes value) except -1:
    """Check that all fields are inside the value; raises UsageError or Corruption otherwise."""
    cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(value)
    cdef Py_ssize_t size = PyBytes_GET_SIZE(value), at
    if size and p[0] > V1:
        raise UsageError(f"a record has format {p[0]}, newer than {V1}", "use the newer version of braidmq")
    if size < HEADER_BYTES or p[0] != V1 or p[1] & 3 == 3 or p[1] & 0x80:
        raise Corruption(f"a record does not have format {V1}")
    at = HEADER_BYTES + get16(p + 2) + get16(p + 4)
    if p[1] & F_PUBLISHED_AT:
        at += 8
    if p[1] & F_EXPIRY:
        at += 12
    if p[1] & F_PROPERTIES:
        at += 4 + (get32(p + at) if at + 4 <= size else 0)
    if at > size:
        raise Corruption("a record is truncated")
    return 0


# As many as a replay reads ahead at a time: they are created and freed together.
@cython.freelist(4096)
cdef class Record:

    def __init__(self, long long timestamp, bytes value not None):
        check_value(value)
        self.timestamp = timestamp
        self.value = value

    cdef void point(self) noexcept:
        """Locate the fields; `check_value` has checked that they are inside the value."""
        cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(self.value)
        cdef Py_ssize_t at
        self.topic_end = HEADER_BYTES + get16(p + 2)
        self.publisher_end = at = self.topic_end + get16(p + 4)
        if p[1] & F_PUBLISHED_AT:
            at += 8
        if p[1] & F_EXPIRY:
            at += 12
        self.properties_at = self.payload_at = at
        if p[1] & F_PROPERTIES:
            self.properties_at = at + 4
            self.payload_at = at + 4 + get32(p + at)

    cdef const uint8_t* at(self, Py_ssize_t place) noexcept:
        return <const uint8_t*>PyBytes_AS_STRING(self.value) + place

    cdef bytes between(self, Py_ssize_t begin, Py_ssize_t end):
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(self.value) + begin, end - begin)

    cdef Py_ssize_t expiry_at(self) noexcept:
        cdef int flags = self.at(1)[0]
        if not flags & F_EXPIRY:
            return 0
        if not self.payload_at:
            self.point()
        return self.publisher_end + (8 if flags & F_PUBLISHED_AT else 0)

    @property
    def topic(self):
        if not self.payload_at:
            self.point()
        return self.between(HEADER_BYTES, self.topic_end)

    @property
    def publisher(self):
        if not self.payload_at:
            self.point()
        return self.between(self.topic_end, self.publisher_end).decode()

    @property
    def properties(self):
        if not self.payload_at:
            self.point()
        return self.between(self.properties_at, self.payload_at)

    @property
    def payload(self):
        if not self.payload_at:
            self.point()
        return self.between(self.payload_at, PyBytes_GET_SIZE(self.value))

    @property
    def qos(self):
        return self.at(1)[0] & 3

    @property
    def retain(self):
        return self.at(1)[0] & F_RETAIN != 0

    @property
    def is_plain(self):
        return self.at(1)[0] & (F_SESSION_ONLY | F_EXPIRY) == 0

    @property
    def session_only(self):
        return self.at(1)[0] & F_SESSION_ONLY != 0

    @property
    def published_at(self):
        if not self.payload_at:
            self.point()
        return get64(self.at(self.publisher_end)) if self.at(1)[0] & F_PUBLISHED_AT else self.timestamp

    @property
    def expires_at(self):
        cdef Py_ssize_t place = self.expiry_at()
        return get64(self.at(place)) if place else 0

    @property
    def expiry_offset(self):
        cdef Py_ssize_t place = self.expiry_at()
        return <int32_t>get32(self.at(place + 8)) if place else -1


cdef Record make_record(long long timestamp, bytes value):
    """A record of a value that `check_value` has accepted."""
    cdef Record record = Record.__new__(Record)
    record.timestamp = timestamp
    record.value = value
    return record


cdef bint is_match(const char* f, Py_ssize_t f_size, const char* t, Py_ssize_t t_size) noexcept:
    """Compares byte by byte: levels are short, so finding their ends first would cost more."""
    cdef const char* f_end = f + f_size
    cdef const char* t_end = t + t_size
    if f_size == 0 or (t_size > 0 and t[0] == b"$" and (f[0] == b"+" or f[0] == b"#")):
        return False  # [MQTT-4.7.2-1]
    while f < f_end:
        if f[0] == b"#":
            return True
        if f[0] == b"+":
            while t < t_end and t[0] != b"/":
                t += 1
        elif t == t_end:
            return f_end - f == 2 and f[1] == b"#"  # the level above # is matched too
        elif f[0] != t[0]:
            return False
        else:
            t += 1
        f += 1
    return t == t_end


cdef class TopicFilters:

    def __init__(self, filters, bint with_session_only):
        self.with_session_only = with_session_only
        self.everything = b"#" in filters
        self.exact = frozenset([each for each in filters if b"+" not in each and b"#" not in each])
        self.wild = [each for each in filters if b"+" in each or b"#" in each]

    cdef bint match(self, const char* topic, Py_ssize_t size) except -1:
        cdef bytes each
        if self.everything and (size == 0 or topic[0] != b"$"):
            return True
        if self.exact and PyBytes_FromStringAndSize(topic, size) in self.exact:
            return True
        for each in self.wild:
            if is_match(PyBytes_AS_STRING(each), PyBytes_GET_SIZE(each), topic, size):
                return True
        return False

    cdef bint match_value(self, bytes value) except -1:
        cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(value)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(value), topic_size
        if size < HEADER_BYTES:
            raise Corruption("a record is truncated")
        if p[1] & F_SESSION_ONLY and not self.with_session_only:
            return False
        topic_size = get16(p + 2)
        if HEADER_BYTES + topic_size > size:
            raise Corruption("a record is truncated")
        return self.match(<const char*>p + HEADER_BYTES, topic_size)

    def matches(self, bytes value not None):
        return self.match_value(value)

    def matches_topic(self, bytes topic not None):
        return self.match(PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))


def record_key(bytes epoch not None, bytes index not None, unsigned long long offset):
    cdef bytes key
    cdef uint8_t* p
    if offset >> 32:
        raise OverflowError("the offset does not fit an epoch")
    key = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(epoch) + PyBytes_GET_SIZE(index) + 4)
    p = put_bytes(<uint8_t*>PyBytes_AS_STRING(key), epoch)
    p = put_bytes(p, index)
    put32(p, <uint32_t>offset)
    return key


def key_offset(bytes key not None):
    if PyBytes_GET_SIZE(key) < C_KEY_BYTES:
        raise Corruption("the key of a record is truncated")
    return get32(<const uint8_t*>PyBytes_AS_STRING(key) + PyBytes_GET_SIZE(key) - 4)


def check_entries(list entries not None, Py_ssize_t value_bytes_max):
    cdef tuple entry
    cdef bytes topic, value
    for entry in entries:
        topic, value = entry
        if topic is None or value is None or not 0 < PyBytes_GET_SIZE(topic) <= 0xFFFF:
            raise ValueError(f"a topic of {len(topic or b'')} bytes cannot be recorded")
        if PyBytes_GET_SIZE(value) > value_bytes_max:
            raise ValueError(f"a record of {len(value)} bytes is larger than {value_bytes_max}")
        check_value(value)


def place(list entries not None, list indexes not None, long long last, long long now, long long epoch_start,
          long long epoch_end, long long count_left, long long bytes_left, set static_ids not None, list rows not None,
          list records not None, list stamps not None):
    cdef Py_ssize_t number, end
    cdef long long stamp, cost, used = 0
    cdef uint8_t prefix[8]
    cdef bytes value, index, key, seen = None
    cdef uint8_t* p
    cdef tuple entry
    put64(prefix, <uint64_t>epoch_start)
    end = min(PyList_GET_SIZE(entries), PyList_GET_SIZE(rows) + max(count_left, 0))
    if PyList_GET_SIZE(indexes) < end:
        raise ValueError("there are fewer indexes than entries")
    for number in range(PyList_GET_SIZE(rows), end):
        entry = <tuple?>entries[number]
        value = <bytes?>entry[1]
        index = <bytes?>indexes[number]
        stamp = now if now > last else last + 1
        cost = C_KEY_BYTES + PyBytes_GET_SIZE(index) + PyBytes_GET_SIZE(value)
        if stamp >= epoch_end or used + cost > bytes_left:
            break
        if stamp < epoch_start or (stamp - epoch_start) >> 32:
            raise OverflowError("the offset does not fit an epoch")
        key = PyBytes_FromStringAndSize(NULL, C_KEY_BYTES + PyBytes_GET_SIZE(index))
        p = <uint8_t*>PyBytes_AS_STRING(key)
        memcpy(p, prefix, 8)
        p = put_bytes(p + 8, index)
        put32(p, <uint32_t>(stamp - epoch_start))
        records.append(make_record(stamp, value))
        stamps.append(stamp)
        rows.append((key, value))
        # Adjacent records mostly have the same pattern.
        if (seen is None or PyBytes_GET_SIZE(index) < C_STATIC_ID_BYTES
                or memcmp(PyBytes_AS_STRING(seen), PyBytes_AS_STRING(index), C_STATIC_ID_BYTES) != 0):
            static_ids.add(index[:C_STATIC_ID_BYTES])
            seen = index if PyBytes_GET_SIZE(index) >= C_STATIC_ID_BYTES else None
        last = stamp
        used += cost
    return used
