# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records of the log as bytes: build one, look into one without taking it apart, collect and order many.

The compiled form; ``records.py`` is its plain twin and has the contract of everything here.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy, memset

from braidmq.base.errors import Corruption

VERSION = 1
RETAIN, SESSION_ONLY, HAS_PUBLISHED_AT, HAS_EXPIRY, HAS_PROPERTIES = 4, 8, 16, 32, 64
ENDED, PAUSED, FAR = 0, 1, 2

cdef enum:
    V1 = 1
    F_RETAIN = 4
    F_SESSION_ONLY = 8
    F_PUBLISHED_AT = 16
    F_EXPIRY = 32
    F_PROPERTIES = 64
    HEADER_BYTES = 6
    NEAR = 8


cdef inline uint32_t get16(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 8) | p[1]


cdef inline uint32_t get32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t get64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>get32(p) << 32) | get32(p + 4)


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
        raise ValueError("a field of a record is out of its range")
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


cdef class Record:
    cdef readonly long long timestamp
    cdef readonly bytes value
    # Where the fields are; `point` proves that they are all inside the value.
    cdef Py_ssize_t topic_end, publisher_end, properties_at, payload_at

    def __init__(self, long long timestamp, bytes value not None):
        self.point(timestamp, value)

    cdef int point(self, long long timestamp, bytes value) except -1:
        cdef const uint8_t* p = <const uint8_t*>PyBytes_AS_STRING(value)
        cdef Py_ssize_t size = PyBytes_GET_SIZE(value), at
        if size < HEADER_BYTES or p[0] != V1 or p[1] & 3 == 3 or p[1] & 0x80:
            raise Corruption(f"the record {timestamp} is not one of version {V1}")
        self.timestamp = timestamp
        self.value = value
        self.topic_end = HEADER_BYTES + get16(p + 2)
        self.publisher_end = self.topic_end + get16(p + 4)
        at = self.publisher_end
        if p[1] & F_PUBLISHED_AT:
            at += 8
        if p[1] & F_EXPIRY:
            at += 12
        self.properties_at = self.payload_at = at
        if p[1] & F_PROPERTIES:
            self.properties_at = at + 4
            self.payload_at = at + 4 + (get32(p + at) if at + 4 <= size else 0)
        if self.payload_at > size:
            raise Corruption(f"the record {timestamp} is cut short")
        return 0

    cdef inline const uint8_t* at(self, Py_ssize_t place) noexcept:
        return <const uint8_t*>PyBytes_AS_STRING(self.value) + place

    cdef inline bytes between(self, Py_ssize_t begin, Py_ssize_t end):
        return PyBytes_FromStringAndSize(PyBytes_AS_STRING(self.value) + begin, end - begin)

    cdef inline Py_ssize_t expiry_at(self) noexcept:
        cdef int flags = self.at(1)[0]
        if not flags & F_EXPIRY:
            return 0
        return self.publisher_end + (8 if flags & F_PUBLISHED_AT else 0)

    @property
    def topic(self):
        return self.between(HEADER_BYTES, self.topic_end)

    @property
    def publisher(self):
        return self.between(self.topic_end, self.publisher_end).decode()

    @property
    def properties(self):
        return self.between(self.properties_at, self.payload_at)

    @property
    def payload(self):
        return self.between(self.payload_at, PyBytes_GET_SIZE(self.value))

    @property
    def qos(self):
        return self.at(1)[0] & 3

    @property
    def retain(self):
        return self.at(1)[0] & F_RETAIN != 0

    @property
    def session_only(self):
        return self.at(1)[0] & F_SESSION_ONLY != 0

    @property
    def published_at(self):
        return get64(self.at(self.publisher_end)) if self.at(1)[0] & F_PUBLISHED_AT else self.timestamp

    @property
    def expires_at(self):
        cdef Py_ssize_t place = self.expiry_at()
        return get64(self.at(place)) if place else 0

    @property
    def expiry_offset(self):
        cdef Py_ssize_t place = self.expiry_at()
        return <int32_t>get32(self.at(place + 8)) if place else -1


cdef bint is_match(const char* f, Py_ssize_t f_size, const char* t, Py_ssize_t t_size) noexcept:
    cdef const char* f_end = f + f_size
    cdef const char* t_end = t + t_size
    cdef const char* t_next
    cdef const char* f_next
    if f_size == 0 or (t_size > 0 and t[0] == b"$" and (f[0] == b"+" or f[0] == b"#")):
        return False  # [MQTT-4.7.2-1]
    while True:
        if f < f_end and f[0] == b"#":
            return True
        t_next = <const char*>memchr(t, b"/", t_end - t)
        if t_next == NULL:
            t_next = t_end
        if f < f_end and f[0] == b"+":
            f_next = f + 1
        else:
            f_next = <const char*>memchr(f, b"/", f_end - f)
            if f_next == NULL:
                f_next = f_end
            if f_next - f != t_next - t or memcmp(f, t, t_next - t) != 0:
                return False
        if f_next == f_end:
            return t_next == t_end
        if t_next == t_end:
            return f_end - f_next == 2 and f_next[1] == b"#"  # the level above # is matched too
        f = f_next + 1
        t = t_next + 1


cdef class TopicFilters:
    cdef bint with_session_only, everything
    cdef frozenset exact
    cdef list wild

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
            raise Corruption("a record is cut short")
        if p[1] & F_SESSION_ONLY and not self.with_session_only:
            return False
        topic_size = get16(p + 2)
        if HEADER_BYTES + topic_size > size:
            raise Corruption("a record is cut short")
        return self.match(<const char*>p + HEADER_BYTES, topic_size)

    def matches(self, bytes value not None):
        return self.match_value(value)

    def matches_topic(self, bytes topic not None):
        return self.match(PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic))


def record_key(bytes epoch not None, bytes index not None, unsigned long long offset):
    cdef bytes key
    cdef uint8_t* p
    if offset > 0xFFFFFFFF:
        raise OverflowError("the offset does not fit an epoch")
    key = PyBytes_FromStringAndSize(NULL, PyBytes_GET_SIZE(epoch) + PyBytes_GET_SIZE(index) + 4)
    p = put_bytes(<uint8_t*>PyBytes_AS_STRING(key), epoch)
    p = put_bytes(p, index)
    put32(p, <uint32_t>offset)
    return key


cdef inline uint32_t offset_of(bytes key) except? 0xFFFFFFFF:
    if PyBytes_GET_SIZE(key) < 12:
        raise Corruption("the key of a record is cut short")
    return get32(<const uint8_t*>PyBytes_AS_STRING(key) + PyBytes_GET_SIZE(key) - 4)


def key_offset(bytes key not None):
    return offset_of(key)


def collect(pairs, query, TopicFilters filters not None, unsigned long long offset_max, Py_ssize_t steps_max,
            list keys not None, list values):
    cdef bytes key = b"", value, index, seen = None, target = b""
    cdef Py_ssize_t step, width = 0, passed = 0
    cdef const char* p = NULL
    cdef uint32_t offset
    cdef tuple pair
    for step in range(steps_max):
        pair = next(pairs, None)
        if pair is None:
            return ENDED, b""
        key, value = pair
        offset = offset_of(key)
        if query is not None:
            p = PyBytes_AS_STRING(key) + 8
            width = PyBytes_GET_SIZE(key) - 12
            if seen is None or PyBytes_GET_SIZE(seen) != width or memcmp(PyBytes_AS_STRING(seen), p, width) != 0:
                index = PyBytes_FromStringAndSize(p, width)
                if index < target:
                    passed += 1
                    if passed >= NEAR:
                        return FAR, target
                    continue
                if not query.matches(index):
                    found = query.ratchet(index)
                    if found is None:
                        return ENDED, b""
                    target = found
                    passed = 0
                    continue
                seen = index
        if offset <= offset_max and filters.match_value(value):
            keys.append(key)
            if values is not None:
                values.append(value)
    if query is not None and key and PyBytes_FromStringAndSize(p, width) < target:
        return FAR, target
    return PAUSED, key


cdef int radix_sort(uint64_t* items, uint64_t* spare, Py_ssize_t count) noexcept nogil:
    """Sort by the upper 32 bits, keeping the order of equals; the result is in ``items``."""
    cdef Py_ssize_t counts[256]
    cdef Py_ssize_t place, i, each
    cdef int shift
    cdef uint64_t* swap
    cdef uint64_t* source = items
    cdef uint64_t* target = spare
    for shift in range(32, 64, 8):
        memset(counts, 0, sizeof(counts))
        for i in range(count):
            counts[(source[i] >> shift) & 255] += 1
        if counts[(source[0] >> shift) & 255] == count:
            continue
        place = 0
        for i in range(256):
            each = counts[i]
            counts[i] = place
            place += each
        for i in range(count):
            each = (source[i] >> shift) & 255
            target[counts[each]] = source[i]
            counts[each] += 1
        swap = source
        source = target
        target = swap
    if source != items:
        memcpy(items, source, count * sizeof(uint64_t))
    return 0


cdef list picked(list items, const uint64_t* order, Py_ssize_t count):
    cdef list out = PyList_New(count)
    cdef Py_ssize_t i
    cdef object item
    for i in range(count):
        item = <object>PyList_GET_ITEM(items, <Py_ssize_t>(order[i] & 0xFFFFFFFF))
        Py_INCREF(item)
        PyList_SET_ITEM(out, i, item)
    return out


def in_time_order(list keys not None, list values):
    cdef Py_ssize_t count = PyList_GET_SIZE(keys), i, kept = 0
    cdef uint64_t* items
    if count == 0:
        return [], None if values is None else []
    if values is not None and PyList_GET_SIZE(values) != count:
        raise ValueError("keys and values are not of one length")
    items = <uint64_t*>malloc(2 * count * sizeof(uint64_t))
    if items == NULL:
        raise MemoryError
    try:
        for i in range(count):
            items[i] = (<uint64_t>offset_of(<bytes>PyList_GET_ITEM(keys, i)) << 32) | <uint64_t>i
        radix_sort(items, items + count, count)
        for i in range(count):
            if kept == 0 or items[i] >> 32 != items[kept - 1] >> 32:
                items[kept] = items[i]
                kept += 1
        return picked(keys, items, kept), None if values is None else picked(values, items, kept)
    finally:
        free(items)


def make_records(long long epoch_start, list keys not None, list values not None):
    cdef Py_ssize_t count = PyList_GET_SIZE(keys), i
    cdef list out = []
    cdef Record record
    if PyList_GET_SIZE(values) != count:
        raise ValueError("keys and values are not of one length")
    for i in range(count):
        record = Record.__new__(Record)
        record.point(epoch_start + <long long>offset_of(<bytes>PyList_GET_ITEM(keys, i)),
                     <bytes>PyList_GET_ITEM(values, i))
        out.append(record)
    return out
