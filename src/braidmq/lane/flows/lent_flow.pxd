cimport cython

from braidmq.lane.flows.log_flow cimport LogFlow
from braidmq.lane.path.message cimport Message
from braidmq.lane.path.outlet cimport Outlet
from braidmq.lane.path.parser cimport Parser
from braidmq.lane.path.state cimport Counters, State
from braidmq.lane.routing.subscription cimport Subscription


cdef class LentOutlet(Outlet):
    cdef readonly State state
    cdef public object lend
    cdef public bint is_shut

    @cython.locals(qos=int, counters=Counters)
    cdef Py_ssize_t send_publish(self, Message message, Subscription subscription, int flags, int packet_id, long long expiry) except? -1
    cdef bint forward_frame(self, Parser parser, bint v5) except -1
    cpdef void send_ack(self, int first_byte, int packet_id, int reason) except *
    cdef bint is_clogged(self) except -1
    cdef bint is_filling(self) except -1
    cdef void flush(self) except *
    cpdef void want_room(self) except *


cdef class LentFlow(LogFlow):
    cdef readonly object owner
    cdef public bint is_stored
    cdef readonly dict waiting

    cpdef Py_ssize_t let_go_readable(self) except? -1
