cimport cython

from braidmq.lane.message cimport Message
from braidmq.lane.outlet cimport Outlet
from braidmq.lane.routes cimport Subscription
from braidmq.lane.state cimport Counters, State


@cython.freelist(1024)
cdef class Delivery:
    cdef public Message message
    cdef readonly Subscription subscription
    cdef readonly int qos
    cdef readonly bint retain
    cdef public bint is_released, is_sent, is_live, is_ready


cdef class Flow:
    cdef readonly str client_id
    cdef readonly State state
    cdef public Outlet channel
    cdef public Py_ssize_t queue_messages_max, queue_bytes_max
    cdef public bint queue_qos0
    cdef readonly Py_ssize_t window, outstanding, inflight_bytes, queue_bytes
    cdef readonly long long dropped
    cdef public bint is_stalled
    cdef readonly bint is_durable
    cdef public int home
    cdef readonly double congested_at
    cdef int _last_id
    cdef dict _inflight
    cdef object _queue, _resend
    cdef set _received
    cdef dict _pending
    cdef dict _waiting

    @cython.locals(channel=Outlet)
    cpdef void deliver(self, Message message, Subscription subscription, int qos, bint retain) except *
    cdef bint _may_send(self, Outlet channel) except *
    cdef bint _is_open(self)
    @cython.locals(channel=Outlet, expiry="long long")
    cpdef void deliver_late(self, Message message, Subscription subscription, int qos, bint retain) except *
    cdef void _drop(self, str reason, Message message) except *
    @cython.locals(counters=Counters)
    cdef void _send_qos0(self, Outlet channel, Message message, Subscription subscription, bint retain, long long expiry) except *
    @cython.locals(packet_id=int, flags=int, counters=Counters, delivery=Delivery)
    cdef void _send(self, Outlet channel, Message message, Subscription subscription, int qos, bint retain, long long expiry) except *
    @cython.locals(inflight=dict, packet_id=int)
    cdef int _next_id(self) except -1
    @cython.locals(inflight=dict)
    cdef void _put_inflight(self, int packet_id, Delivery delivery) except *
    cdef void _let_go(self, Delivery delivery) except *
    cdef long long _seconds_left(self, Message message) except? -2
    @cython.locals(cost=Py_ssize_t, waiting=Py_ssize_t, channel=Outlet)
    cdef void _enqueue(self, Message message, Subscription subscription, int qos, bint retain) except *
    cpdef bint is_congested(self) except *
    cpdef void hold(self, Outlet publisher) except *
    cpdef void forget_publisher(self, Outlet publisher) except *
    cpdef void release_publishers(self) except *
    @cython.locals(channel=Outlet, counters=Counters, delivery=Delivery, message=Message, expiry="long long")
    cpdef void pump(self) except *
    cdef void _note_drained(self) except *
    @cython.locals(cost=Py_ssize_t)
    cdef void _uncount(self, Message message) except *
    @cython.locals(inflight=dict, delivery=Delivery, message=Message, packet_id=int, flags=int)
    cdef void _send_again(self, Outlet channel) except *
    cpdef bint on_puback(self, int packet_id, int reason) except *
    @cython.locals(delivery=Delivery)
    cpdef int on_pubrec(self, int packet_id, int reason) except? -1
    cpdef bint on_pubcomp(self, int packet_id) except *
    @cython.locals(inflight=dict, delivery=Delivery)
    cdef bint _settle(self, int packet_id, int qos, bint is_released) except *
    @cython.locals(received=set)
    cpdef bint receive(self, int packet_id) except *
    cpdef bint is_receiving(self, int packet_id) except *
    cpdef void expect_commit(self, int packet_id) except *
    @cython.locals(pending=dict)
    cpdef bint is_pending(self, int packet_id) except *
    cpdef Py_ssize_t end_pending(self, int packet_id) except? -1
    @cython.locals(received=set)
    cpdef bint forget_received(self, int packet_id) except *
    @cython.locals(delivery=Delivery)
    cpdef void attach(self, Outlet channel, Py_ssize_t window) except *
    cpdef void detach(self) except *
    cpdef Py_ssize_t queue_messages(self)
    cpdef Py_ssize_t inflight_messages(self)
    cpdef bint has_place(self, Message message) except *
    @cython.locals(state=State, lost=Py_ssize_t, delivery=Delivery)
    cpdef void discard(self) except *
