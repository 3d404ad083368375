cimport cython

from braidmq.lane.flows.delivery cimport Delivery, new_delivery
from braidmq.lane.flows.inbound cimport Inbound
from braidmq.lane.path.message cimport Message
from braidmq.lane.path.outlet cimport Outlet
from braidmq.lane.path.state cimport State
from braidmq.lane.routing.subscription cimport Subscription

cdef Py_ssize_t _HELD_COST, _HEAVY_BYTES


cdef class SessionQueue(Inbound):
    cdef readonly str client_id
    cdef readonly State state
    cdef public Outlet channel
    cdef public Py_ssize_t queue_messages_max, queue_bytes_max
    cdef readonly Py_ssize_t queue_bytes, held_bytes
    cdef public bint is_heavy, is_over
    cdef readonly long long dropped
    cdef public bint is_stalled
    cdef readonly double congested_at
    cdef object _queue
    cdef dict _waiting

    @cython.locals(cost=Py_ssize_t, waiting=Py_ssize_t, channel=Outlet)
    cdef void _enqueue(self, Message message, Subscription subscription, int qos, bint retain) except *
    @cython.locals(cost=Py_ssize_t)
    cdef void _uncount(self, Message message) except *
    cpdef Py_ssize_t queue_messages(self)
    cpdef bint has_place(self, Message message) except -1
    cpdef bint is_congested(self) except -1
    cpdef void hold(self, Outlet publisher) except *
    cpdef void forget_publisher(self, Outlet publisher) except *
    cpdef void release_publishers(self) except *
    cdef void _note_drained(self) except *
    cdef void _drop(self, str reason, Message message) except *
    cdef void _drop_expired(self, Message message) except *
    cdef void _drop_for_memory(self, Message message) except *
    @cython.locals(state=State)
    cdef bint _hold(self, Py_ssize_t size) except -1
    cdef void _unhold(self, Py_ssize_t size) noexcept
