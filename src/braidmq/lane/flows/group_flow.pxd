cimport cython

from braidmq.lane.flows.log_flow cimport LogFlow
from braidmq.lane.path.message cimport Message
from braidmq.lane.path.state cimport State
from braidmq.lane.routing.subscription cimport Subscription

cdef long long _DEFERRED_BYTES_MAX
cdef Py_ssize_t _PLACE_BYTES


cdef class GroupFlow(LogFlow):
    cdef public object group
    cdef list _deferred
    cdef long long _deferred_bytes

    @cython.locals(state=State, is_readable=bint, size=Py_ssize_t)
    cpdef void deliver(self, Message message, Subscription subscription, int qos, bint retain) except *
    cpdef list take_deferred(self)
    @cython.locals(message=Message)
    cpdef list positions_before(self, list deferred)
    cpdef void succeed(self, GroupFlow before) except *
