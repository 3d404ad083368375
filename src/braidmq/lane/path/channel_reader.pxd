cimport cython

from braidmq.lane.path.lane cimport Lane
from braidmq.lane.path.parser cimport Parser
from braidmq.lane.path.state cimport Counters, State
from braidmq.lane.path.writer cimport Writer

cdef int _COLD_WORK, _PUBLISH_SHIFT, _COLD_SHIFT
cdef Py_ssize_t _LARGE_FRAME_BYTES


cdef class ChannelReader(Writer):
    cdef readonly Lane lane
    cdef public Py_ssize_t frame_max
    cdef public double last_seen
    cdef readonly long long bytes_received, messages_received
    cdef public bint is_greeted, is_open, is_metered
    cdef readonly int hold_bits
    cdef readonly bytearray _rest
    cdef Py_ssize_t _carried

    @cython.locals(state=State, before="long long", rest=bytearray)
    cdef void _take(self, object buffer, Py_ssize_t have, Py_ssize_t fresh) except *
    cdef void _keep(self, object buffer, Py_ssize_t start, Py_ssize_t have) except *
    @cython.locals(lane=Lane, state=State, counters=Counters, parser=Parser, status=int, kind=int, before="long long",
                   size="Py_ssize_t", work="Py_ssize_t")
    cdef void _run(self, object buffer, Py_ssize_t have) except *
    cdef void _on_publish_frame(self, Parser parser) except *
    cdef bint _on_ack_frame(self, Parser parser) except -1
