cimport cython

from braidmq.lane.records.topic_index cimport MaskQuery, level_key


cdef class PatternNode:
    cdef readonly unsigned int number
    cdef readonly dict children
    cdef public PatternNode varying
    cdef public bytes end, tail


cdef class PatternTrie:
    cdef PatternNode _root, _dollar_root
    cdef tuple _thresholds
    cdef Py_ssize_t _eager_from
    cdef readonly Py_ssize_t entries, entries_max
    cdef readonly long long next_id
    cdef public list fresh

    cpdef bint is_full(self) except -1
    @cython.locals(levels=list, has_tail=bint, depth=Py_ssize_t, depth_end=Py_ssize_t, node=PatternNode, below=PatternNode, level=bytes, hashes=bytes, static=bytes)
    cpdef bytes index(self, bytes topic)
    @cython.locals(below=PatternNode, thresholds=tuple, room=Py_ssize_t)
    cdef PatternNode _learn(self, PatternNode node, bytes level, Py_ssize_t depth)
    cdef bytes _learn_end(self, PatternNode node, bint has_tail)
    cdef long long _enter(self, int kind, PatternNode parent, bytes level) except -1
    cdef bytes _overflow(self, list levels)
    @cython.locals(root=PatternNode, node=PatternNode, groups=list, reached=list, found=list, nodes=list, exact=list, varying=list, level=bytes, key=bytes, bits=bytes, pattern=bytes, mask=bytes, is_any=bint, has_end=bint, has_tail=bint)
    cpdef list plan(self, list levels, bint is_open, Py_ssize_t queries_max)
    @cython.locals(parent=PatternNode, node=PatternNode)
    cpdef object restore(self, object entries)
    @cython.locals(node=PatternNode, copy=PatternNode, child=PatternNode, twin=PatternNode)
    cpdef object bequeath(self, PatternTrie heir)


@cython.locals(node=PatternNode, child=PatternNode, exact=list, varying=list)
cdef tuple _below(list nodes, bint is_any, bytes level)
cdef bint _find_wild(PatternNode node, bint is_below_varying, set wild) except -1
cdef tuple _tail(list levels, bint is_open)
cdef list _overflow_queries(list levels, bint is_open)
