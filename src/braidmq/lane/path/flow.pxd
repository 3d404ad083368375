cimport cython

from braidmq.lane.path.delivery cimport Delivery, new_delivery
from braidmq.lane.path.inbound cimport Inbound
from braidmq.lane.path.message cimport Message
from braidmq.lane.path.outlet cimport Outlet
from braidmq.lane.path.state cimport Counters, State
from braidmq.lane.path.subscription cimport Subscription

cdef Py_ssize_t _HELD_COST, _HEAVY_BYTES, _PRESSED_BYTES


cdef class Flow(Inbound):
    cdef readonly str client_id
    cdef readonly State state
    cdef public Outlet channel
    cdef public Py_ssize_t queue_messages_max, queue_bytes_max
    cdef public bint queue_qos0
    cdef readonly Py_ssize_t window, outstanding, inflight_bytes, queue_bytes, held_bytes
    cdef public bint is_heavy, is_over
    cdef readonly long long dropped
    cdef public bint is_stalled
    cdef readonly bint is_durable
    cdef public int home_shard
    cdef public long long seen
    cdef readonly double congested_at
    cdef int _last_id
    cdef dict _inflight
    cdef object _queue, _resend
    cdef dict _waiting

    @cython.locals(channel=Outlet)
    cpdef void deliver(self, Message message, Subscription subscription, int qos, bint retain) except *
    cdef bint _may_send(self, Outlet channel) except -1
    cdef bint _is_open(self)
    @cython.locals(channel=Outlet, expiry="long long")
    cpdef void deliver_late(self, Message message, Subscription subscription, int qos, bint retain) except *
    cdef void _drop(self, str reason, Message message) except *
    cdef void _drop_expired(self, Message message) except *
    @cython.locals(counters=Counters)
    cdef void _send_qos0(self, Outlet channel, Message message, Subscription subscription, bint retain, long long expiry) except *
    @cython.locals(packet_id=int, flags=int, counters=Counters, delivery=Delivery)
    cdef void _send(self, Outlet channel, Message message, Subscription subscription, int qos, bint retain, long long expiry) except *
    @cython.locals(inflight=dict, packet_id=int)
    cdef int _next_id(self) except -1
    @cython.locals(inflight=dict, cost=Py_ssize_t)
    cdef bint _put_inflight(self, int packet_id, Delivery delivery) except -1
    @cython.locals(cost=Py_ssize_t)
    cdef bint _let_go(self, Delivery delivery) except -1
    cdef bint _take_out(self, Delivery delivery) except -1
    @cython.locals(state=State)
    cdef bint _hold(self, Py_ssize_t size) except -1
    cdef void _unhold(self, Py_ssize_t size) noexcept
    @cython.locals(cost=Py_ssize_t, waiting=Py_ssize_t, channel=Outlet)
    cdef void _enqueue(self, Message message, Subscription subscription, int qos, bint retain) except *
    cdef void _drop_for_memory(self, Message message) except *
    cpdef bint is_congested(self) except -1
    cpdef void hold(self, Outlet publisher) except *
    cpdef void forget_publisher(self, Outlet publisher) except *
    cpdef void release_publishers(self) except *
    @cython.locals(channel=Outlet, delivery=Delivery, message=Message, expiry="long long")
    cpdef void pump(self) except *
    cdef void _note_drained(self) except *
    @cython.locals(cost=Py_ssize_t)
    cdef void _uncount(self, Message message) except *
    @cython.locals(inflight=dict, delivery=Delivery, message=Message, packet_id=int, flags=int)
    cdef void _send_again(self, Outlet channel) except *
    cpdef bint on_puback(self, int packet_id, int reason) except -1
    @cython.locals(delivery=Delivery)
    cpdef int on_pubrec(self, int packet_id, int reason) except? -1
    cpdef bint on_pubcomp(self, int packet_id) except -1
    @cython.locals(delivery=Delivery)
    cpdef bint is_wrong_ack(self, int kind, int packet_id) except -1
    @cython.locals(inflight=dict, delivery=Delivery, key=object)
    cdef bint _settle(self, int packet_id, int qos, bint is_released) except -1
    @cython.locals(delivery=Delivery)
    cpdef void attach(self, Outlet channel, Py_ssize_t window) except *
    cpdef void detach(self) except *
    cpdef Py_ssize_t queue_messages(self)
    cpdef Py_ssize_t inflight_messages(self)
    cpdef bint has_place(self, Message message) except -1
    @cython.locals(state=State, lost=Py_ssize_t, delivery=Delivery)
    cpdef void discard(self) except *
