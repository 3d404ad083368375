cimport cython

from braidmq.lane.flows.delivery cimport Delivery, new_delivery
from braidmq.lane.routing.delivery_rules cimport copy_qos, copy_retain
from braidmq.lane.flows.flow cimport Flow
from braidmq.lane.path.message cimport Message, from_record
from braidmq.lane.path.outlet cimport Outlet
from braidmq.lane.flows.packed_deliveries cimport pack_deliveries, unpack_deliveries
from braidmq.lane.records.records cimport Record
from braidmq.lane.path.state cimport Counters, State
from braidmq.lane.routing.subscription cimport Subscription


cdef class LogFlow(Flow):
    cdef public bint is_following
    cdef public bint is_changed
    cdef public list positions
    cdef public dict missing
    cdef list _unready
    cdef list _writing
    cdef bytes _packed

    cdef list _offered(self)
    cpdef void fall_behind(self) except *
    cpdef void note_change(self) except *
    @cython.locals(channel=Outlet)
    cpdef void deliver(self, Message message, Subscription subscription, int qos, bint retain) except *
    @cython.locals(channel=Outlet)
    cpdef bint take(self, Message message, Subscription subscription, int qos, bint retain, long long expiry) except -1
    @cython.locals(channel=Outlet, count=Py_ssize_t, sent=Py_ssize_t, shard=int, record=Record, message=Message)
    cpdef Py_ssize_t take_plain(self, list records, Py_ssize_t place, Subscription subscription, list positions) except? -1
    @cython.locals(packet_id=int, delivery=Delivery)
    cdef void _send(self, Outlet channel, Message message, Subscription subscription, int qos, bint retain, long long expiry) except *
    cdef void _assign(self, Outlet channel, Message message, Subscription subscription, int qos, bint retain, long long expiry) except *
    cdef void _await_disk(self, int packet_id, Delivery delivery) except *
    @cython.locals(writing=list, steps=list, count=Py_ssize_t)
    cpdef void make_ready(self, list packet_ids) except *
    @cython.locals(inflight=dict, channel=Outlet, delivery=Delivery)
    cdef void _execute(self, list packet_ids) except *
    @cython.locals(counters=Counters, message=Message, flags=int)
    cdef void _step(self, Outlet channel, int packet_id, Delivery delivery) except *
    @cython.locals(inflight=dict)
    cdef void _put_last(self, int packet_id, Delivery delivery) except *
    cdef void _forget_too_large(self, int packet_id, Message message) except *
    @cython.locals(inflight=dict, delivery=Delivery)
    cpdef int on_pubrec(self, int packet_id, int reason) except? -1
    cdef bint _settle(self, int packet_id, int qos, bint is_released) except -1
    @cython.locals(delivery=Delivery)
    cpdef void make_all_ready(self) except *
    @cython.locals(delivery=Delivery)
    cpdef void detach(self) except *
    @cython.locals(sent=list, waiting=list, item=tuple, delivery=Delivery)
    cpdef list inflight_items(self)
    @cython.locals(inflight=dict, delivery=Delivery, message=Message, is_here=bint, count=Py_ssize_t)
    cpdef Py_ssize_t let_go_readable(self) except? -1
    @cython.locals(inflight=dict, packed=bytes)
    cpdef void pack(self) except *
    cdef void _unpack(self) except *
    cpdef void attach(self, Outlet channel, Py_ssize_t window) except *
    cpdef Py_ssize_t inflight_messages(self)
    cpdef void discard(self) except *
    @cython.locals(inflight=dict, delivery=Delivery)
    cpdef void hand_over(self) except *
    @cython.locals(inflight=dict, delivery=Delivery, channel=Outlet)
    cpdef list next_unread(self, Py_ssize_t count_max)
    @cython.locals(inflight=dict, delivery=Delivery)
    cpdef bint has_unread(self) except -1
    cpdef bint is_waiting_for(self, int packet_id, Delivery delivery) except -1
    cpdef void refill(self, Delivery delivery, Message message) except *
    @cython.locals(delivery=Delivery, message=Message)
    cpdef void drop_newest(self, Py_ssize_t bytes_max) except *
    @cython.locals(inflight=dict, delivery=Delivery, message=Message)
    cpdef void drop_unrecorded(self) except *
