cimport cython

from braidmq.lane.path.message cimport Message
from braidmq.lane.path.subscription cimport Subscription


@cython.freelist(1024)
cdef class Delivery:
    cdef public Message message
    cdef readonly Subscription subscription
    cdef readonly int qos
    cdef readonly bint retain
    cdef public bint is_released, is_sent, is_live, is_ready
    cdef public int shard
    cdef public long long timestamp

    cpdef bint is_unread(self)
    @cython.locals(message=Message)
    cpdef tuple place(self)
