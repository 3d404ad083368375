cimport cython

from braidmq.lane.flow cimport Delivery, Flow
from braidmq.lane.message cimport Message, from_record
from braidmq.lane.outlet cimport Outlet
from braidmq.lane.records cimport Record
from braidmq.lane.routes cimport Subscription
from braidmq.lane.state cimport Counters, State


cdef class LogFlow(Flow):
    cdef public bint is_following
    cdef public bint is_changed
    cdef public list positions
    cdef list _unready

    cpdef void fall_behind(self) except *
    cpdef void note_change(self) except *
    @cython.locals(channel=Outlet)
    cpdef void deliver(self, Message message, Subscription subscription, int qos, bint retain) except *
    @cython.locals(channel=Outlet)
    cpdef bint take(self, Message message, Subscription subscription, int qos, bint retain, long long expiry) except *
    @cython.locals(channel=Outlet, count=Py_ssize_t, sent=Py_ssize_t, shard=int, record=Record, message=Message, qos=int)
    cpdef Py_ssize_t take_plain(self, list records, Py_ssize_t place, Subscription subscription, list positions) except? -1
    @cython.locals(packet_id=int, delivery=Delivery)
    cdef void _send(self, Outlet channel, Message message, Subscription subscription, int qos, bint retain, long long expiry) except *
    cdef void _assign(self, Outlet channel, Message message, Subscription subscription, int qos, bint retain, long long expiry) except *
    cdef void _await_disk(self, int packet_id, Delivery delivery) except *
    @cython.locals(inflight=dict, channel=Outlet, delivery=Delivery)
    cpdef void make_ready(self, list packet_ids) except *
    @cython.locals(counters=Counters, message=Message, flags=int)
    cdef void _step(self, Outlet channel, int packet_id, Delivery delivery) except *
    @cython.locals(inflight=dict)
    cdef void _put_last(self, int packet_id, Delivery delivery) except *
    cdef void _forget_too_large(self, int packet_id, Message message) except *
    @cython.locals(inflight=dict, delivery=Delivery)
    cpdef int on_pubrec(self, int packet_id, int reason) except? -1
    cdef bint _settle(self, int packet_id, int qos, bint is_released) except *
    @cython.locals(delivery=Delivery)
    cpdef void make_all_ready(self) except *
    @cython.locals(delivery=Delivery)
    cpdef void detach(self) except *
    @cython.locals(sent=list, waiting=list, item=tuple, delivery=Delivery)
    cpdef list inflight_items(self)
