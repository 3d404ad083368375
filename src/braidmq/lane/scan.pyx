# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""What a scan of one epoch has found: collected in order of topics, then put in order of time and read in pieces.

The compiled form; ``scan.py`` is its plain twin and has the contract of every method. What counts here is memory: an object is
cold a moment after it was made, so that offsets and sizes are kept in arrays beside the list, and the list is put in order by
moving its pointers.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from braidmq.base.errors import Corruption

from braidmq.lane.records cimport Record, TopicFilters, check_value, make_record
from braidmq.lane.topic_index cimport MaskQuery

ENDED, PAUSED, FAR = 0, 1, 2

cdef enum:
    NEAR = 8
    COST = 53
    KEY_BYTES = 12

cdef extern from "Python.h":
    ctypedef struct PyListObject:
        PyObject** ob_item


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
    cdef list kept
    # For each of `kept`: offset << 32 | its place in the list, and the size of its value.
    cdef uint64_t* places
    cdef uint32_t* sizes
    cdef Py_ssize_t capacity

    def __init__(self, bint has_values):
        self.has_values = has_values
        self.kept = []

    def __dealloc__(self):
        free(self.places)
        free(self.sizes)

    def __len__(self):
        return PyList_GET_SIZE(self.kept)

    cdef int grow(self) except -1:
        cdef Py_ssize_t capacity = max(16, self.capacity * 2)
        cdef uint64_t* places = <uint64_t*>realloc(self.places, capacity * sizeof(uint64_t))
        cdef uint32_t* sizes
        if places == NULL:
            raise MemoryError
        self.places = places
        sizes = <uint32_t*>realloc(self.sizes, capacity * sizeof(uint32_t))
        if sizes == NULL:
            raise MemoryError
        self.sizes = sizes
        self.capacity = capacity
        return 0

    cdef int keep(self, uint32_t offset, bytes kept) except -1:
        cdef Py_ssize_t count = PyList_GET_SIZE(self.kept)
        if count == self.capacity:
            self.grow()
        self.places[count] = (<uint64_t>offset << 32) | <uint64_t>count
        self.sizes[count] = <uint32_t>PyBytes_GET_SIZE(kept)
        self.size_bytes += PyBytes_GET_SIZE(kept) + COST
        self.kept.append(kept)
        return 0

    def collect(self, pairs, query, TopicFilters filters not None, unsigned long long offset_max, Py_ssize_t steps_max):
        cdef bytes key = b"", value, index, target = b"", seen = None
        cdef Py_ssize_t step, width = 0, passed = 0
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
        cdef Py_ssize_t count = PyList_GET_SIZE(self.kept), i, last = 0, twice = count
        cdef uint64_t* spare
        cdef uint32_t* sizes
        cdef PyObject** items
        cdef PyObject** moved
        if count == 0:
            return
        spare = <uint64_t*>malloc(count * sizeof(uint64_t))
        moved = <PyObject**>malloc(count * sizeof(PyObject*))
        sizes = <uint32_t*>malloc(self.capacity * sizeof(uint32_t))
        if spare == NULL or moved == NULL or sizes == NULL:
            free(spare)
            free(moved)
            free(sizes)
            raise MemoryError
        radix_sort(self.places, spare, count)
        # Records found twice go to the end, from where they are cut off: until then every pointer stays in the list.
        items = (<PyListObject*>self.kept).ob_item
        for i in range(count):
            if last and self.places[i] >> 32 == self.places[last - 1] >> 32:
                twice -= 1
                moved[twice] = items[self.places[i] & 0xFFFFFFFF]
                self.size_bytes -= self.sizes[self.places[i] & 0xFFFFFFFF] + COST
            else:
                moved[last] = items[self.places[i] & 0xFFFFFFFF]
                sizes[last] = self.sizes[self.places[i] & 0xFFFFFFFF]
                self.places[last] = self.places[i]
                last += 1
        memcpy(items, moved, count * sizeof(PyObject*))
        free(spare)
        free(moved)
        free(self.sizes)
        self.sizes = sizes
        if last < count:
            del self.kept[last:]

    cdef Py_ssize_t later(self, long long offset) noexcept:
        """The number of the first record above the offset."""
        cdef Py_ssize_t low = 0, high = PyList_GET_SIZE(self.kept), middle
        while low < high:
            middle = (low + high) // 2
            if <long long>(self.places[middle] >> 32) <= offset:
                low = middle + 1
            else:
                high = middle
        return low

    def read(self, long long epoch_start, long long position, Py_ssize_t count_max, long long bytes_max):
        cdef Py_ssize_t i = self.later(position - epoch_start)
        cdef Py_ssize_t end = min(PyList_GET_SIZE(self.kept), i + count_max)
        cdef long long size = 0
        cdef list records = []
        if not self.has_values:
            raise TypeError("these matches have no values")
        while i < end:
            # Checked when it was collected.
            records.append(make_record(epoch_start + <long long>(self.places[i] >> 32), <bytes>PyList_GET_ITEM(self.kept, i)))
            size += self.sizes[i]
            i += 1
            if size >= bytes_max:
                break
        return records, size

    def read_keys(self, long long epoch_start, long long position, Py_ssize_t count_max):
        cdef Py_ssize_t begin = self.later(position - epoch_start)
        return self.kept[begin : begin + count_max]
