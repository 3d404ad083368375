# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Seek or step: how a scan of an epoch's pairs, in the order of their topic indexes, passes those that its query does not want.

The compiled form; ``seek.py`` is its plain twin and has the contract of every method. An index is examined where it is in the
pair's key: most pairs need no object for it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint8_t

from braidmq.lane.records.topic_index cimport MaskQuery

ENDED, PAUSED, FAR = 0, 1, 2
SKIP, TAKE = 3, 4

cdef enum:
    NEAR = 32


cdef class Seek:

    def __init__(self, query):
        self.target = b""
        self._query = query
        self._masked = query if isinstance(query, MaskQuery) else None
        self._patience = PATIENCE

    def examine(self, bytes index not None):
        return examine_at(self, <const uint8_t*>PyBytes_AS_STRING(index), PyBytes_GET_SIZE(index))

    def is_ahead(self, bytes index not None):
        return index < self.target

    cdef int search(self, const uint8_t* index, Py_ssize_t width) except -1:
        """Examine an index that needs an object: it may be the first of a topic, or before the next possible match."""
        cdef bytes found, here
        here = PyBytes_FromStringAndSize(<const char*>index, width)
        if here < self.target:
            self._passed += 1
            return SEEK_FAR if self._passed >= NEAR else SEEK_SKIP
        if self._masked is None and self._query.matches(here):
            self._seen = here
            return SEEK_TAKE
        found = self._query.ratchet(here)
        self._passed = 0
        if found is None:
            self.target = b""
            return SEEK_ENDED
        self.target = found
        return SEEK_SKIP

    cdef bint is_ahead_of(self, const uint8_t* index, Py_ssize_t width) except -1:
        return PyBytes_FromStringAndSize(<const char*>index, width) < self.target
