# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Records as columns in the memory layout of Arrow: filtered and taken apart in one pass over what an iterator of a store gives.

The compiled form; ``columns.py`` is its plain twin and has the contract of everything here. A field is copied once, from the value
that the store's iterator made to the block that Arrow will read; no object is made for it.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from braidmq.base.errors import Corruption

from braidmq.lane.records cimport TopicFilters, check_value
from braidmq.lane.topic_index cimport MaskQuery

from braidmq.lane.scan import ENDED, FAR, PAUSED

RAN_OUT = 3

NUMBERS = ("qos", "publish_timestamp", "payload_format", "expires_at", "position", "size")
FLAGS = ("retain",)
TEXTS = ("topic", "client_id", "content_type", "response_topic")
BINARIES = ("payload", "correlation_data")
NAMES = (*NUMBERS, *FLAGS, *TEXTS, *BINARIES, "user_properties")

NARROW = ("qos", "payload_format", "size")  # of 32 bits

cdef enum:
    NEAR = 32
    PATIENCE = 8  # under a mask, this many steps cost less than finding out where to go
    KEY_BYTES = 12
    HEADER_BYTES = 6
    F_RETAIN = 4
    F_PUBLISHED_AT = 16
    F_EXPIRY = 32
    F_PROPERTIES = 64
    BLOCK_BYTES_MIN = 256
    # A block begins with the size that the last one of its column came to, up to this.
    HINT_BYTES_MAX = 8388608

# Arrow's offsets have 31 bits. Whoever collects stops long before.
cdef Py_ssize_t BLOCK_BYTES_MAX = 0x7FFFFFFF


cdef inline uint32_t get16(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 8) | p[1]


cdef inline uint32_t get32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


cdef inline uint64_t get64(const uint8_t* p) noexcept nogil:
    return (<uint64_t>get32(p) << 32) | get32(p + 4)


cdef class Block:
    """Memory that grows, and that Arrow reads in place once it is handed over."""

    cdef uint8_t* data
    cdef Py_ssize_t size, capacity

    def __cinit__(self, Py_ssize_t capacity=0):
        self.capacity = max(capacity, <Py_ssize_t>BLOCK_BYTES_MIN)
        self.data = <uint8_t*>malloc(self.capacity)
        if self.data == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)

    def __len__(self):
        return self.size

    cdef int grow(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t capacity = max(self.capacity * 2, self.size + more)
        cdef uint8_t* data
        if self.size + more > BLOCK_BYTES_MAX:
            raise MemoryError("a column is larger than Arrow's offsets can say")
        data = <uint8_t*>realloc(self.data, capacity)
        if data == NULL:
            raise MemoryError
        self.data = data
        self.capacity = capacity
        return 0

    cdef inline int reserve(self, Py_ssize_t more) except -1:
        if self.size + more > self.capacity:
            self.grow(more)
        return 0

    cdef inline int put(self, const uint8_t* p, Py_ssize_t size) except -1:
        self.reserve(size)
        memcpy(self.data + self.size, p, size)
        self.size += size
        return 0

    cdef inline int put_int32(self, int32_t number) except -1:
        self.reserve(4)
        (<int32_t*>(self.data + self.size))[0] = number
        self.size += 4
        return 0

    cdef inline int put_int64(self, int64_t number) except -1:
        self.reserve(8)
        (<int64_t*>(self.data + self.size))[0] = number
        self.size += 8
        return 0

    cdef int fill(self, int value, Py_ssize_t size) except -1:
        self.reserve(size)
        memset(self.data + self.size, value, size)
        self.size += size
        return 0

    cdef inline int put_bit(self, Py_ssize_t place, bint is_set) except -1:
        """Set the next bit; those before it are set already."""
        if place & 7 == 0:
            self.reserve(1)
            self.data[self.size] = 0
            self.size += 1
        if is_set:
            self.data[place >> 3] |= <uint8_t>(1 << (place & 7))
        return 0

    cdef Block fresh(self):
        """An empty one for as much as this has."""
        return Block(min(self.size + self.size // 8, <Py_ssize_t>HINT_BYTES_MAX))


cdef class Validity:
    """Which rows of a column have a value; costs nothing while all of them have one."""

    cdef Py_ssize_t rows, nulls
    cdef Block bits  # None while there are no nulls

    cdef inline int add(self) except -1:
        if self.bits is not None:
            self.bits.put_bit(self.rows, True)
        self.rows += 1
        return 0

    cdef int pad(self, Py_ssize_t rows) except -1:
        """Nulls up to so many rows."""
        if self.bits is None:
            self.bits = Block((rows + 7) // 8)
            self.bits.fill(0xFF, (self.rows + 7) // 8)
            if self.rows & 7:
                self.bits.data[self.bits.size - 1] = <uint8_t>((1 << (self.rows & 7)) - 1)
        # The rest of the last byte is 0 already.
        self.bits.fill(0, (rows + 7) // 8 - self.bits.size)
        self.nulls += rows - self.rows
        self.rows = rows
        return 0


cdef class Column:
    cdef tuple take(self, Py_ssize_t rows):
        """Hand over so many rows, as the number of nulls and the buffers, and begin anew."""
        raise NotImplementedError


cdef class Flags(Column):
    """A column of bits without nulls."""

    cdef Block bits

    def __cinit__(self):
        self.bits = Block()

    cdef tuple take(self, Py_ssize_t rows):
        bits = self.bits
        self.bits = bits.fresh()
        return 0, [None, bits]


cdef class Numbers(Column):
    """A column of int32 or int64; rows that are left out are null."""

    cdef Validity validity
    cdef Block values
    cdef int width

    def __cinit__(self, int width):
        self.width = width
        self.validity = Validity()
        self.values = Block()

    cdef inline int add(self, Py_ssize_t row, int64_t number) except -1:
        if self.validity.rows < row:
            self.pad(row)
        self.validity.add()
        return self.values.put_int64(number) if self.width == 8 else self.values.put_int32(<int32_t>number)

    cdef int pad(self, Py_ssize_t rows) except -1:
        if self.validity.rows < rows:
            self.values.fill(0, (rows - self.validity.rows) * self.width)
            self.validity.pad(rows)
        return 0

    cdef tuple take(self, Py_ssize_t rows):
        self.pad(rows)
        taken = self.validity.nulls, [self.validity.bits, self.values]
        self.validity = Validity()
        self.values = self.values.fresh()
        return taken


cdef class Variable(Column):
    """A column of texts or binaries; rows that are left out are null."""

    cdef Validity validity
    cdef Block offsets, data
    cdef bint is_text

    def __cinit__(self, bint is_text):
        self.is_text = is_text
        self.validity = Validity()
        self.offsets = Block()
        self.data = Block()
        self.offsets.put_int32(0)

    cdef inline int add(self, Py_ssize_t row, const uint8_t* p, Py_ssize_t size) except -1:
        if self.validity.rows < row:
            self.pad(row)
        self.validity.add()
        self.data.put(p, size)
        return self.offsets.put_int32(<int32_t>self.data.size)

    cdef int pad(self, Py_ssize_t rows) except -1:
        cdef Py_ssize_t count = rows - self.validity.rows, place
        cdef int32_t* ends
        if count <= 0:
            return 0
        self.validity.pad(rows)
        self.offsets.reserve(count * 4)
        ends = <int32_t*>(self.offsets.data + self.offsets.size)
        for place in range(count):
            ends[place] = <int32_t>self.data.size
        self.offsets.size += count * 4
        return 0

    cdef int check(self) except -1:
        """Raise Corruption unless every row is UTF-8: so is all of it then, and every row begins with a character."""
        cdef const uint8_t* p = self.data.data
        cdef const int32_t* begins = <const int32_t*>self.offsets.data
        cdef Py_ssize_t place, size = self.data.size
        cdef uint8_t high = 0
        for place in range(size):
            high |= p[place]
        if high < 0x80:
            return 0
        try:
            PyBytes_FromStringAndSize(<const char*>p, size).decode()
        except UnicodeDecodeError:
            raise Corruption("a text in a record is not UTF-8") from None
        for place in range(self.validity.rows):
            if begins[place] < size and p[begins[place]] & 0xC0 == 0x80:
                raise Corruption("a text in a record is not UTF-8")
        return 0

    cdef list take_values(self):
        """Offsets and bytes."""
        if self.is_text:
            self.check()
        taken = [self.offsets, self.data]
        self.validity = Validity()
        self.offsets = self.offsets.fresh()
        self.offsets.put_int32(0)
        self.data = self.data.fresh()
        return taken

    cdef tuple take(self, Py_ssize_t rows):
        self.pad(rows)
        bits = self.validity.bits
        nulls = self.validity.nulls
        return nulls, [bits, *self.take_values()]


cdef class Pairs(Column):
    """A column of lists of pairs of texts; rows that are left out are null."""

    cdef Validity validity
    cdef Block ends
    cdef Variable names, values
    cdef Py_ssize_t count

    def __cinit__(self):
        self.validity = Validity()
        self.ends = Block()
        self.ends.put_int32(0)
        self.names = Variable(True)
        self.values = Variable(True)

    cdef int add(self, const uint8_t* name, Py_ssize_t name_size, const uint8_t* value, Py_ssize_t value_size) except -1:
        """One more pair of the row that `close` will end."""
        self.names.add(self.count, name, name_size)
        self.values.add(self.count, value, value_size)
        self.count += 1
        return 0

    cdef int close(self, Py_ssize_t row, Py_ssize_t added) except -1:
        if added == 0:
            return 0
        self.pad(row, self.count - added)
        self.validity.add()
        return self.ends.put_int32(<int32_t>self.count)

    cdef int pad(self, Py_ssize_t rows, Py_ssize_t end) except -1:
        cdef Py_ssize_t place
        if self.validity.rows < rows:
            for place in range(rows - self.validity.rows):
                self.ends.put_int32(<int32_t>end)
            self.validity.pad(rows)
        return 0

    cdef tuple take(self, Py_ssize_t rows):
        self.pad(rows, self.count)
        taken = self.validity.nulls, [self.validity.bits, self.ends, *self.names.take_values(), *self.values.take_values()]
        self.validity = Validity()
        self.ends = self.ends.fresh()
        self.ends.put_int32(0)
        self.count = 0
        return taken


cdef Column make_column(str name):
    if name == "user_properties":
        return Pairs()
    if name in FLAGS:
        return Flags()
    if name in NUMBERS:
        return Numbers(4 if name in NARROW else 8)
    return Variable(name in TEXTS)


cdef inline bint is_masked(MaskQuery query, const uint8_t* index, Py_ssize_t width) noexcept:
    """What query.matches says, without an object for the index."""
    cdef const uint8_t* mask = <const uint8_t*>PyBytes_AS_STRING(query.mask)
    cdef const uint8_t* pattern = <const uint8_t*>PyBytes_AS_STRING(query.pattern)
    cdef Py_ssize_t i
    if width < PyBytes_GET_SIZE(query.mask):
        return False
    for i in range(PyBytes_GET_SIZE(query.mask)):
        if index[i] & mask[i] != pattern[i]:
            return False
    return True


cdef class Columns:
    cdef readonly long long size_bytes
    cdef Py_ssize_t rows
    cdef dict columns  # by name, and each once more below, None if it is not wanted
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
        cdef bytes key = b"", value, index, target = b"", seen = None
        cdef Py_ssize_t step, width = 0, passed = 0, patience = PATIENCE
        cdef const uint8_t* p = NULL
        cdef const uint8_t* v
        cdef long long timestamp
        cdef tuple pair
        cdef bint is_wanted
        cdef MaskQuery masked = query if isinstance(query, MaskQuery) else None
        for step in range(steps_max):
            if self.rows >= rows_max or self.size_bytes >= bytes_max:
                break
            pair = next(pairs, None)
            if pair is None:
                return RAN_OUT, key
            key, value = pair
            if PyBytes_GET_SIZE(key) < KEY_BYTES:
                raise Corruption("the key of a record is cut short")
            p = <const uint8_t*>PyBytes_AS_STRING(key) + 8
            width = PyBytes_GET_SIZE(key) - KEY_BYTES
            if query is not None:
                if masked is not None:
                    is_wanted = is_masked(masked, p, width)
                    if is_wanted:
                        patience = PATIENCE
                    elif patience and not masked.is_prefix:
                        patience -= 1
                        continue
                else:
                    is_wanted = (seen is not None and PyBytes_GET_SIZE(seen) == width
                                 and memcmp(PyBytes_AS_STRING(seen), p, width) == 0)
                if not is_wanted:
                    index = PyBytes_FromStringAndSize(<const char*>p, width)
                    if index < target:
                        passed += 1
                        if passed >= NEAR:
                            return FAR, target
                        continue
                    if masked is not None or not query.matches(index):
                        found = query.ratchet(index)
                        if found is None:
                            return ENDED, b""
                        target = found
                        passed = 0
                        continue
                    seen = index
            timestamp = <long long>get64(p - 8) + get32(p + width)
            if after < timestamp <= upto:
                check_value(value)
                v = <const uint8_t*>PyBytes_AS_STRING(value)
                if filters.match_value(value) and (
                        excluded is None or not excluded.match(<const char*>v + HEADER_BYTES, get16(v + 2))):
                    self.add(v, PyBytes_GET_SIZE(value), timestamp, PyBytes_GET_SIZE(key))
        if query is not None and p != NULL and PyBytes_FromStringAndSize(<const char*>p, width) < target:
            return FAR, target
        return PAUSED, key

    cdef int add(self, const uint8_t* v, Py_ssize_t value_size, long long timestamp, Py_ssize_t key_size) except -1:
        """One more row of a value that `check_value` was asked about."""
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
            self.retain.bits.put_bit(row, flags & F_RETAIN != 0)
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
                raise Corruption(f"a record has a property 0x{identifier:02X}, which no message has")
        if p > end:
            raise Corruption("the properties of a record are cut short")
        if self.user_properties is not None:
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
    """The place behind a text or binary whose length is at `p`."""
    if p + 2 > end or p + 2 + get16(p) > end:
        raise Corruption("the properties of a record are cut short")
    return p + 2 + get16(p)
