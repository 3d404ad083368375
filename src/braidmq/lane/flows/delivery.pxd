cimport cython

from braidmq.lane.path.message cimport Message
from braidmq.lane.routing.subscription cimport Subscription


cdef class Delivery:
    cdef public Message message
    cdef readonly Subscription subscription
    cdef readonly int qos
    cdef readonly bint retain
    cdef public bint is_released, is_sent, is_live, is_ready
    cdef public int shard
    cdef public long long timestamp

    cdef void _set(self, Message message, Subscription subscription, int qos, bint retain) noexcept
    cpdef bint is_unread(self)
    @cython.locals(message=Message)
    cpdef tuple place(self)


@cython.locals(delivery=Delivery)
cpdef Delivery new_delivery(Message message, Subscription subscription, int qos, bint retain)
