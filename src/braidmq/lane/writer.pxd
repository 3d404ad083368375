cimport cython

from braidmq.lane.message cimport Message
from braidmq.lane.outbox cimport Outbox
from braidmq.lane.outlet cimport Upcalls
from braidmq.lane.routes cimport Subscription
from braidmq.lane.scanner cimport Scanner
from braidmq.lane.state cimport State


cdef class Writer(Upcalls):
    cdef readonly State state
    cdef public object transport
    cdef readonly Outbox outbox
    cdef public int fd
    cdef public bint is_v5, is_traced
    cdef bint is_dirty, _is_urgent, _writable
    cdef public Py_ssize_t frame_max_out
    cdef readonly Py_ssize_t alias_out_max
    cdef readonly long long bytes_sent, messages_sent
    cdef dict _aliases_out

    cdef void _mark(self) except *
    cpdef void send(self, bytes frame) except *
    @cython.locals(topic=bytes, alias=int, size=Py_ssize_t, aliases=dict)
    cdef Py_ssize_t send_publish(self, Message message, Subscription subscription, int flags, int packet_id, long long expiry) except? -1
    cdef bint forward_frame(self, Scanner scan, bint v5) except *
    cpdef void send_ack(self, int first_byte, int packet_id, int reason) except *
    cdef bint is_clogged(self) except *
    cdef bint is_filling(self) except *
    @cython.locals(sent=Py_ssize_t)
    cdef void flush(self) except *
