cimport cython

from braidmq.lane.flows.delivery cimport Delivery, new_delivery
from braidmq.lane.path.message cimport Message
from braidmq.lane.path.outlet cimport Outlet
from braidmq.lane.flows.session_queue cimport SessionQueue
from braidmq.lane.path.state cimport Counters, State
from braidmq.lane.routing.subscription cimport Subscription

cdef Py_ssize_t _HELD_COST, _PRESSED_BYTES


cdef class Flow(SessionQueue):
    cdef public bint queue_qos0
    cdef readonly Py_ssize_t window, outstanding, inflight_bytes
    cdef readonly bint is_durable, is_peer
    cdef public int home_shard
    cdef public long long seen
    cdef int _last_id
    cdef dict _inflight
    cdef object _resend

    @cython.locals(channel=Outlet)
    cpdef void deliver(self, Message message, Subscription subscription, int qos, bint retain) except *
    cdef bint _may_send(self, Outlet channel) except -1
    cdef bint _is_open(self)
    @cython.locals(channel=Outlet, expiry="long long")
    cpdef void deliver_late(self, Message message, Subscription subscription, int qos, bint retain) except *
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
    @cython.locals(cost=Py_ssize_t)
    cdef bint _take_out(self, Delivery delivery) except -1
    @cython.locals(channel=Outlet, delivery=Delivery, message=Message, expiry="long long")
    cpdef void pump(self) except *
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
    cpdef Py_ssize_t inflight_messages(self)
    @cython.locals(state=State, lost=Py_ssize_t, delivery=Delivery)
    cpdef void discard(self) except *
