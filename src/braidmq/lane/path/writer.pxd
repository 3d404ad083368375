cimport cython

from braidmq.lane.path.message cimport Message
from braidmq.lane.path.outbox cimport Outbox
from braidmq.lane.path.outlet cimport Upcalls
from braidmq.lane.path.parser cimport Parser
from braidmq.lane.path.state cimport State
from braidmq.lane.routing.subscription cimport Subscription


cdef class Writer(Upcalls):
    cdef readonly State state
    cdef public object transport
    cdef readonly Outbox outbox
    cdef public int fd
    cdef public bint is_v5, is_traced
    cdef bint is_dirty, _is_urgent, _writable
    cdef public Py_ssize_t frame_max_out
    cdef readonly Py_ssize_t alias_out_max
    cdef Py_ssize_t _unread
    cdef readonly long long bytes_sent, messages_sent
    cdef dict _aliases_out

    cdef bint _mark(self) except -1
    cdef void _count_unread(self, Py_ssize_t size) noexcept
    cpdef void send(self, bytes frame) except *
    @cython.locals(topic=bytes, alias=int, size=Py_ssize_t, aliases=dict)
    cdef Py_ssize_t send_publish(self, Message message, Subscription subscription, int flags, int packet_id, long long expiry) except? -1
    cdef bint forward_frame(self, Parser parser, bint v5) except -1
    cpdef void send_ack(self, int first_byte, int packet_id, int reason) except *
    @cython.locals(state=State)
    cdef bint is_clogged(self) except -1
    @cython.locals(state=State)
    cdef bint is_stuck(self) except -1
    cdef bint is_filling(self) except -1
    @cython.locals(sent=Py_ssize_t)
    cdef void flush(self) except *
