# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What a scan of one epoch has found: collected in order of topics, then put in order of time and read in pieces.

The compiled form; ``scan.py`` is its plain twin and has the contract of every method. What counts here is memory: tens of
thousands of objects would be cold when they are touched again, in another order, and free themselves one by one. So the bytes
go into blocks, which never move because copying megabytes takes milliseconds, and objects are made when they are read.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from braidmq.base.errors import Corruption

from braidmq.lane.records cimport TopicFilters, check_value, make_record
from braidmq.lane.topic_index cimport MaskQuery

ENDED, PAUSED, FAR = 0, 1, 2

cdef enum:
    NEAR = 32
    PATIENCE = 8  # under a mask, this many steps cost less than finding out where to go
    COST = 53
    BLOCK_BYTES = 262144
    FIRST_BLOCK_BYTES = 4096
    AHEAD = 6
    KEY_BYTES = 12

cdef extern from *:
    void __builtin_prefetch(const void* place) nogil


cdef struct Kept:
    const uint8_t* data  # in one of the blocks
    Py_ssize_t size


cdef inline uint32_t get32(const uint8_t* p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | p[3]


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


cdef void radix_sort(uint64_t* items, uint64_t* spare, Py_ssize_t count) noexcept nogil:
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


cdef class Matches:
    cdef readonly long long size_bytes
    cdef bint has_values
    cdef Py_ssize_t count, capacity
    cdef uint64_t* places  # offset << 32 | number in `kept`
    cdef Kept* kept
    cdef uint8_t** blocks
    cdef Py_ssize_t block_count
    cdef uint8_t* free_bytes  # the rest of the last block
    cdef Py_ssize_t free_size

    def __init__(self, bint has_values):
        self.has_values = has_values

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.block_count):
            free(self.blocks[i])
        free(self.blocks)
        free(self.places)
        free(self.kept)

    def __len__(self):
        return self.count

    cdef int grow(self) except -1:
        cdef Py_ssize_t capacity = max(16, self.capacity * 2)
        cdef uint64_t* places = <uint64_t*>realloc(self.places, capacity * sizeof(uint64_t))
        cdef Kept* kept
        if places == NULL:
            raise MemoryError
        self.places = places
        kept = <Kept*>realloc(self.kept, capacity * sizeof(Kept))
        if kept == NULL:
            raise MemoryError
        self.kept = kept
        self.capacity = capacity
        return 0

    cdef int add_block(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t block_size = max(size, <Py_ssize_t>(BLOCK_BYTES if self.block_count else FIRST_BLOCK_BYTES))
        cdef uint8_t** blocks = <uint8_t**>realloc(self.blocks, (self.block_count + 1) * sizeof(uint8_t*))
        cdef uint8_t* block
        if blocks == NULL:
            raise MemoryError
        self.blocks = blocks
        block = <uint8_t*>malloc(block_size)
        if block == NULL:
            raise MemoryError
        blocks[self.block_count] = block
        self.block_count += 1
        self.free_bytes = block
        self.free_size = block_size
        return 0

    cdef int keep(self, uint32_t offset, bytes data) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if self.count == self.capacity:
            self.grow()
        if size > self.free_size:
            self.add_block(size)
        memcpy(self.free_bytes, PyBytes_AS_STRING(data), size)
        self.places[self.count] = (<uint64_t>offset << 32) | <uint64_t>self.count
        self.kept[self.count].data = self.free_bytes
        self.kept[self.count].size = size
        self.free_bytes += size
        self.free_size -= size
        self.count += 1
        self.size_bytes += size + COST
        return 0

    def collect(self, pairs, query, TopicFilters filters not None, unsigned long long offset_max, Py_ssize_t steps_max):
        cdef bytes key = b"", value, index, target = b"", seen = None
        cdef Py_ssize_t step, width = 0, passed = 0, patience = PATIENCE
        cdef const uint8_t* p = NULL
        cdef uint32_t offset
        cdef tuple pair
        cdef bint is_wanted
        cdef MaskQuery masked = query if isinstance(query, MaskQuery) else None
        for step in range(steps_max):
            pair = next(pairs, None)
            if pair is None:
                return ENDED, b""
            key, value = pair
            if PyBytes_GET_SIZE(key) < KEY_BYTES:
                raise Corruption("the key of a record is cut short")
            p = <const uint8_t*>PyBytes_AS_STRING(key) + 8
            width = PyBytes_GET_SIZE(key) - KEY_BYTES
            offset = get32(p + width)
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
            if offset <= offset_max:
                check_value(value)
                if filters.match_value(value):
                    self.keep(offset, value if self.has_values else key)
        if query is not None and p != NULL and PyBytes_FromStringAndSize(<const char*>p, width) < target:
            return FAR, target
        return PAUSED, key

    def order(self):
        cdef Py_ssize_t i, last = 0
        cdef uint64_t* spare
        if self.count == 0:
            return
        spare = <uint64_t*>malloc(self.count * sizeof(uint64_t))
        if spare == NULL:
            raise MemoryError
        radix_sort(self.places, spare, self.count)
        free(spare)
        for i in range(self.count):
            if last and self.places[i] >> 32 == self.places[last - 1] >> 32:
                self.size_bytes -= self.kept[self.places[i] & 0xFFFFFFFF].size + COST
            else:
                self.places[last] = self.places[i]
                last += 1
        self.count = last

    cdef Py_ssize_t later(self, long long offset) noexcept:
        """The number of the first record above the offset."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) // 2
            if <long long>(self.places[middle] >> 32) <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    cdef bytes at(self, Py_ssize_t i):
        cdef Kept kept = self.kept[self.places[i] & 0xFFFFFFFF]
        return PyBytes_FromStringAndSize(<const char*>kept.data, kept.size)

    cdef void expect(self, Py_ssize_t i) noexcept:
        """Let the processor fetch what will be read soon."""
        cdef const uint8_t* place
        if i < self.count:
            place = self.kept[self.places[i] & 0xFFFFFFFF].data
            __builtin_prefetch(place)
            __builtin_prefetch(place + 64)

    def read(self, long long epoch_start, long long position, Py_ssize_t count_max, long long bytes_max):
        cdef Py_ssize_t i = self.later(position - epoch_start)
        cdef Py_ssize_t end = min(self.count, i + count_max)
        cdef long long size = 0
        cdef list records = []
        cdef bytes value
        if not self.has_values:
            raise TypeError("these matches have no values")
        while i < end:
            self.expect(i + AHEAD)
            value = self.at(i)
            # It was checked when it was collected.
            records.append(make_record(epoch_start + <long long>(self.places[i] >> 32), value))
            size += PyBytes_GET_SIZE(value)
            i += 1
            if size >= bytes_max:
                break
        return records, size

    def read_keys(self, long long epoch_start, long long position, Py_ssize_t count_max):
        cdef Py_ssize_t begin = self.later(position - epoch_start), i
        return [self.at(i) for i in range(begin, min(self.count, begin + count_max))]
