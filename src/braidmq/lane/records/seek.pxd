cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t
from libc.string cimport memcmp

from braidmq.lane.records.topic_index cimport MaskQuery

cdef enum:
    SEEK_ENDED = 0
    SEEK_FAR = 2
    SEEK_SKIP = 3
    SEEK_TAKE = 4
    PATIENCE = 8  # under a mask, this many steps cost less than computing where to seek


@cython.final
cdef class Seek:
    cdef readonly bytes target
    cdef object _query
    cdef MaskQuery _masked
    cdef bytes _seen
    cdef Py_ssize_t _passed, _patience

    cdef int search(self, const uint8_t* index, Py_ssize_t width) except -1
    cdef bint is_ahead_of(self, const uint8_t* index, Py_ssize_t width) except -1


cdef inline bint is_masked(MaskQuery query, const uint8_t* index, Py_ssize_t width) noexcept:
    """The result of query.matches, without an object for the index."""
    cdef const uint8_t* mask = <const uint8_t*>PyBytes_AS_STRING(query.mask)
    cdef const uint8_t* pattern = <const uint8_t*>PyBytes_AS_STRING(query.pattern)
    cdef Py_ssize_t i
    if width < PyBytes_GET_SIZE(query.mask):
        return False
    for i in range(PyBytes_GET_SIZE(query.mask)):
        if index[i] & mask[i] != pattern[i]:
            return False
    return True


cdef inline int examine_at(Seek seek, const uint8_t* index, Py_ssize_t width) except -1:
    """Seek.examine for an index in place. Inline because most pairs of a scan go no further than this."""
    cdef MaskQuery masked = seek._masked
    if masked is not None:
        if is_masked(masked, index, width):
            seek._patience = PATIENCE
            return SEEK_TAKE
        if seek._patience and not masked.is_prefix:
            seek._patience -= 1
            return SEEK_SKIP
    elif (seek._seen is not None and PyBytes_GET_SIZE(seek._seen) == width
            and memcmp(PyBytes_AS_STRING(seek._seen), index, width) == 0):
        return SEEK_TAKE
    return seek.search(index, width)
