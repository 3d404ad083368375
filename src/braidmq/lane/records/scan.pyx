# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The matches of a scan of one epoch: collected in order of topics, then sorted by time and read in pieces.

The compiled form; ``scan.py`` is its plain twin and has the contract of every method. Memory access dominates here: tens of
thousands of objects would be out of the cache when they are read in another order, and would be freed one by one. So the bytes
go into blocks, which never move because copying megabytes takes milliseconds, and objects are created when they are read.

The location of a record's bytes is one number, which is sorted together with its offset: a table in between would be read in
random order. The number counts units of 8 bytes: the upper bits are the block, the lower ones the unit within it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from braidmq.base.errors import Corruption

from braidmq.lane.records.big_endian cimport get32
from braidmq.lane.records.records cimport TopicFilters, check_value, make_record
from braidmq.lane.records.seek cimport SEEK_SKIP, SEEK_TAKE, Seek, examine_at

from braidmq.lane.records.seek import ENDED, FAR, PAUSED

cdef enum:
    COST = 53
    BLOCK_BYTES = 262144
    FIRST_BLOCK_BYTES = 4096
    BLOCK_SHIFT = 15  # units of a block, as bits
    BLOCKS_MAX = 131072  # the remaining bits of 32
    UNIT_BYTES = 8
    GROUP = 16
    LINE_BYTES = 64
    KEY_BYTES = 12

cdef extern from *:
    void __builtin_prefetch(const void* place) nogil


cdef struct Kept:
    Py_ssize_t size
    uint8_t data[1]  # as many as the size says



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
    cdef uint64_t* places  # offset << 32 | where it is kept
    cdef uint8_t** blocks
    cdef Py_ssize_t block_count
    cdef Py_ssize_t used, block_bytes  # of the last block

    def __init__(self, bint has_values):
        self.has_values = has_values

    def __dealloc__(self):
        cdef Py_ssize_t i
        for i in range(self.block_count):
            free(self.blocks[i])
        free(self.blocks)
        free(self.places)

    def __len__(self):
        return self.count

    cdef int grow(self) except -1:
        cdef Py_ssize_t capacity = max(16, self.capacity * 2)
        cdef uint64_t* places = <uint64_t*>realloc(self.places, capacity * sizeof(uint64_t))
        if places == NULL:
            raise MemoryError
        self.places = places
        self.capacity = capacity
        return 0

    cdef int add_block(self, Py_ssize_t size) except -1:
        cdef Py_ssize_t block_bytes = max(size, <Py_ssize_t>(BLOCK_BYTES if self.block_count else FIRST_BLOCK_BYTES))
        cdef uint8_t** blocks
        cdef uint8_t* block
        if self.block_count == BLOCKS_MAX:
            raise MemoryError
        blocks = <uint8_t**>realloc(self.blocks, (self.block_count + 1) * sizeof(uint8_t*))
        if blocks == NULL:
            raise MemoryError
        self.blocks = blocks
        block = <uint8_t*>malloc(block_bytes)
        if block == NULL:
            raise MemoryError
        blocks[self.block_count] = block
        self.block_count += 1
        self.used = 0
        self.block_bytes = block_bytes
        return 0

    cdef int keep(self, uint32_t offset, bytes data) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        cdef Py_ssize_t room = (sizeof(Py_ssize_t) + size + UNIT_BYTES - 1) & -UNIT_BYTES
        cdef uint64_t place
        cdef Kept* kept
        if self.count == self.capacity:
            self.grow()
        # A record larger than a block has a block of its own, and is the first there.
        if room > self.block_bytes - self.used:
            self.add_block(room)
        place = (<uint64_t>(self.block_count - 1) << BLOCK_SHIFT) | <uint64_t>(self.used // UNIT_BYTES)
        kept = <Kept*>(self.blocks[self.block_count - 1] + self.used)
        kept.size = size
        memcpy(kept.data, PyBytes_AS_STRING(data), size)
        self.places[self.count] = (<uint64_t>offset << 32) | place
        self.used += room
        self.count += 1
        self.size_bytes += size + COST
        return 0

    cdef inline Kept* kept(self, Py_ssize_t i) noexcept:
        # A 32-bit literal would become a Python object here.
        cdef uint32_t place = <uint32_t>self.places[i]
        return <Kept*>(self.blocks[place >> BLOCK_SHIFT] + (place & ((1 << BLOCK_SHIFT) - 1)) * UNIT_BYTES)

    def collect(self, pairs, query, TopicFilters filters not None, unsigned long long offset_max, Py_ssize_t steps_max,
                Py_ssize_t bytes_max):
        cdef bytes key = b"", value
        cdef Py_ssize_t step, width = 0, size = 0
        cdef const uint8_t* p = NULL
        cdef uint32_t offset
        cdef tuple pair
        cdef int verdict
        cdef Seek seek = None if query is None else Seek(query)
        for step in range(steps_max):
            if size >= bytes_max:
                break
            pair = next(pairs, None)
            if pair is None:
                return ENDED, b""
            key, value = pair
            size += PyBytes_GET_SIZE(value)
            if PyBytes_GET_SIZE(key) < KEY_BYTES:
                raise Corruption("the key of a record is truncated")
            p = <const uint8_t*>PyBytes_AS_STRING(key) + 8
            width = PyBytes_GET_SIZE(key) - KEY_BYTES
            offset = get32(p + width)
            if seek is not None:
                verdict = examine_at(seek, p, width)
                if verdict == SEEK_SKIP:
                    continue
                if verdict != SEEK_TAKE:
                    return verdict, seek.target
            if offset <= offset_max:
                check_value(value)
                if filters.match_value(value):
                    self.keep(offset, value if self.has_values else key)
        if seek is not None and p != NULL and seek.is_ahead_of(p, width):
            return FAR, seek.target
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
                self.size_bytes -= self.kept(i).size + COST
            else:
                self.places[last] = self.places[i]
                last += 1
        self.count = last

    cdef Py_ssize_t later(self, long long offset) noexcept:
        """The index of the first record above the offset."""
        cdef Py_ssize_t low = 0, high = self.count, middle
        while low < high:
            middle = (low + high) // 2
            if <long long>(self.places[middle] >> 32) <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    cdef inline bytes at(self, Py_ssize_t i):
        cdef Kept* kept = self.kept(i)
        return PyBytes_FromStringAndSize(<const char*>kept.data, kept.size)

    def read(self, long long epoch_start, long long position, Py_ssize_t count_max, long long bytes_max):
        cdef Py_ssize_t i = self.later(position - epoch_start), j, count
        cdef Py_ssize_t end = min(self.count, i + count_max)
        cdef long long size = 0
        cdef list records = []
        cdef Kept* group[GROUP]
        cdef Py_ssize_t sizes[GROUP]
        cdef bytes value
        if not self.has_values:
            raise TypeError("these matches have no values")
        while i < end and size < bytes_max:
            # Records are scattered and mostly not in a cache: prefetching lets the processor wait for a whole group at once.
            count = min(GROUP, end - i)
            for j in range(count):
                group[j] = self.kept(i + j)
                sizes[j] = group[j].size
                __builtin_prefetch(<const uint8_t*>group[j] + LINE_BYTES)
                __builtin_prefetch(<const uint8_t*>group[j] + 2 * LINE_BYTES)
            for j in range(count):
                value = PyBytes_FromStringAndSize(<const char*>group[j].data, sizes[j])
                # It was checked when it was collected.
                records.append(make_record(epoch_start + <long long>(self.places[i + j] >> 32), value))
                size += sizes[j]
                if size >= bytes_max:
                    break
            i += count
        return records, size

    def read_keys(self, long long epoch_start, long long position, Py_ssize_t count_max):
        cdef Py_ssize_t begin = self.later(position - epoch_start), i
        return [self.at(i) for i in range(begin, min(self.count, begin + count_max))]
