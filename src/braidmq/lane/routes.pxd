cimport cython


cdef class Subscription:
    cdef readonly object flow, group
    cdef readonly bytes topic_filter, identifiers
    cdef readonly int qos
    cdef readonly bint no_local, retain_as_published
    cdef public Subscription echo, prompt
    cdef public bint is_behind


cdef class Route:
    cdef readonly bytes topic
    cdef public list targets
    cdef public bint stale
    cdef public long long wild_version
    cdef public int flags, keep_qos, record_qos


cdef class TrieNode:
    cdef readonly dict children, here, multi
    cdef public TrieNode single

    cpdef bint is_empty(self)
    cdef TrieNode below(self, bytes level)
    cdef dict bucket(self, bint is_multi)


@cython.locals(merged=Subscription)
cdef Subscription _merge(Subscription first, Subscription second)
cdef Subscription _echo(Subscription subscription)
@cython.locals(merged=Subscription, subscription=Subscription)
cpdef Subscription merge(list subscriptions)
cdef Subscription _prompt(Subscription subscription)


cdef class RouteTable:
    cdef dict _exact, _fresh, _aged
    cdef TrieNode _root
    cdef Py_ssize_t _cache_max
    cdef public Py_ssize_t levels_max
    cdef readonly long long version, wild_version, count, filters, visited
    cdef public object inspector
    cdef public int history_qos

    @cython.locals(node=TrieNode)
    cpdef bint add(self, Subscription subscription) except *
    cdef bint _add_exact(self, bytes topic, object flow, Subscription subscription) except *
    @cython.locals(route=Route)
    cdef void _spoil(self, bytes topic) except *
    @cython.locals(node=TrieNode, below=TrieNode)
    cdef tuple _node(self, bytes topic_filter)
    cpdef bint remove(self, bytes topic_filter, object flow) except *
    cdef bint _remove_exact(self, bytes topic, object flow) except *
    @cython.locals(node=TrieNode, below=TrieNode)
    cdef bint _remove_wild(self, bytes topic_filter, object flow) except *
    @cython.locals(node=TrieNode, below=TrieNode, first=TrieNode, root=TrieNode, frontier=list, reached=list, levels=list, level=bytes, found=list, i=Py_ssize_t, depth=Py_ssize_t)
    cpdef list match_wild(self, bytes topic)
    @cython.locals(route=Route)
    cpdef Route resolve(self, bytes topic)
    @cython.locals(found=list, merged=dict, subscription=Subscription, topic=bytes, flags=int)
    cdef void _build(self, Route route) except *
    cpdef void refresh(self) except *
