cimport cython

from braidmq.lane.routing.delivery_rules cimport merge_two
from braidmq.lane.routing.filter_trie cimport FilterTrie
from braidmq.lane.routing.subscription cimport Subscription


cdef class Route:
    cdef readonly bytes topic
    cdef public list targets
    cdef public bint stale
    cdef public long long wild_version
    cdef public int entry_qos, flags, keep_qos, record_qos


@cython.locals(merged=dict, targets=list, subscription=Subscription, other=Subscription)
cdef list _one_each(list found)


cdef class RouteTable:
    cdef dict _exact, _fresh, _aged
    cdef FilterTrie _wild
    cdef Py_ssize_t _cache_max
    cdef public Py_ssize_t levels_max
    cdef readonly long long version, wild_version, count, filters, remote, system, visited
    cdef public object inspector
    cdef public int history_qos
    cdef public bint keep_all, keep_for_peers
    cdef public Py_ssize_t weight_max

    cpdef bint add(self, Subscription subscription) except -1
    @cython.locals(others=Py_ssize_t)
    cdef bint _add_wild(self, bytes topic_filter, Subscription subscription) except -1
    cdef bint _add_exact(self, bytes topic, object flow, Subscription subscription) except -1
    @cython.locals(route=Route)
    cdef void _spoil(self, bytes topic) except *
    @cython.locals(left=Py_ssize_t, found=bint)
    cpdef bint remove(self, bytes topic_filter, object flow) except -1
    cdef bint _remove_exact(self, bytes topic, object flow) except -1
    @cython.locals(topic_filter=bytes, left=Py_ssize_t, found=bint, is_new=bint, is_wild=bint, is_wild_changed=bint, is_changed=bint,
                   before="long long")
    cpdef Py_ssize_t apply_remote(self, object added, object removed, Subscription subscription) except? -1
    cpdef list match_wild(self, bytes topic)
    @cython.locals(route=Route)
    cpdef Route resolve(self, bytes topic)
    @cython.locals(found=list, subscription=Subscription, topic=bytes, flags=int)
    cdef void _build(self, Route route) except *
    @cython.locals(subscription=Subscription, count=Py_ssize_t, weight=Py_ssize_t)
    cdef bint _is_wide(self, list targets, bint is_flagged) except -1
    cpdef void refresh(self) except *
