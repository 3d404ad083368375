from braidmq.lane.path.message cimport Message
from braidmq.lane.path.parser cimport Parser
from braidmq.lane.routing.subscription cimport Subscription


cdef class Outlet:
    cdef public bint is_waiting, is_muted
    cdef public long long turn

    cdef Py_ssize_t send_publish(self, Message message, Subscription subscription, int flags, int packet_id, long long expiry) except? -1
    cdef bint forward_frame(self, Parser parser, bint v5) except -1
    cpdef void send_ack(self, int first_byte, int packet_id, int reason) except *
    cdef bint is_clogged(self) except -1
    cdef bint is_filling(self) except -1
    cdef void flush(self) except *
    cpdef void want_room(self) except *
    cpdef void settle(self, object flow, int qos, int packet_id, int code) except *
    cpdef void end_large(self, Py_ssize_t size) except *
    cpdef void refuse_publish(self, object flow, int qos, int packet_id, bint is_in_doubt) except *
    cpdef void schedule_release(self) except *


cdef class Upcalls(Outlet):
    pass
