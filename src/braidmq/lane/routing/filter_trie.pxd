cimport cython

from braidmq.lane.routing.subscription cimport Subscription


cdef class TrieNode:
    cdef public bytes label
    cdef readonly Py_ssize_t depth
    cdef public dict children
    cdef public object here, multi
    cdef public TrieNode single

    cdef TrieNode below(self, bytes level)
    cdef void put_below(self, bytes level, TrieNode node) except *
    cdef bint is_leaf(self)
    cdef bytes only_below(self)
    @cython.locals(label=bytes, size=Py_ssize_t, topic_size=Py_ssize_t, end=Py_ssize_t, place=Py_ssize_t, char=int)
    cdef bint reaches(self, bytes topic, list ends, Py_ssize_t depth) except? -1


cdef int PLUS, SLASH, _SHARED_LABELS_MAX, _SHARED_LABEL_BYTES_MAX

cdef tuple _path(bytes topic_filter)
@cython.locals(size=Py_ssize_t, same=Py_ssize_t)
cdef Py_ssize_t _common(bytes label, bytes path, Py_ssize_t start) except -1
@cython.locals(end=Py_ssize_t, level=bytes)
cdef list _ends(list levels)
cdef bint _may_match(TrieNode node, Py_ssize_t count)
cdef int _collect(object held, list found) except -1


cdef class FilterTrie:
    cdef TrieNode _root
    cdef dict _labels
    cdef readonly long long visited

    @cython.locals(node=TrieNode, is_multi=bint, others=Py_ssize_t)
    cpdef Py_ssize_t put(self, bytes topic_filter, Subscription subscription) except? -2
    @cython.locals(node=TrieNode, below=TrieNode, path=bytes, level=bytes, label=bytes, at=Py_ssize_t, end=Py_ssize_t, common=Py_ssize_t)
    cdef tuple _node(self, bytes topic_filter)
    cdef bytes _share(self, bytes label)
    @cython.locals(label=bytes, end=Py_ssize_t, middle=TrieNode)
    cdef TrieNode _split(self, TrieNode above, bytes level, TrieNode node, Py_ssize_t common)
    @cython.locals(node=TrieNode, below=TrieNode, path=bytes, at=Py_ssize_t, end=Py_ssize_t, left=Py_ssize_t, multi=bint)
    cpdef Py_ssize_t remove(self, bytes topic_filter, object owner) except? -2
    @cython.locals(node=TrieNode, below=TrieNode)
    cdef void _tidy(self, list nodes, list levels) except *
    @cython.locals(node=TrieNode, below=TrieNode, found=list, levels=list, ends=list, nodes=list, count=Py_ssize_t,
                   depth=Py_ssize_t, is_dollar=bint, is_open=bint, is_named=bint)
    cpdef list match(self, bytes topic)
