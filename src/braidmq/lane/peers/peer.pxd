cimport cython

from braidmq.lane.flows.log_flow cimport LogFlow
from braidmq.lane.path.message cimport Message
from braidmq.lane.path.outbox cimport Outbox
from braidmq.lane.path.outlet cimport Outlet
from braidmq.lane.path.parser cimport Parser
from braidmq.lane.path.state cimport Counters, State
from braidmq.lane.routing.subscription cimport Subscription

cdef int _QOS0, _FORWARD, _FEED, _V5, _CONTINUED
cdef Py_ssize_t _FEED_HEAD, _FORWARD_HEAD, _PUBLISH_HEAD, _FRAME_MAX, _VALUE_BYTES_MAX


cdef class PeerOutlet(Outlet):
    cdef readonly str name
    cdef readonly State state
    cdef public Py_ssize_t bytes_max
    cdef readonly Py_ssize_t body_bytes_max, waiting_bytes, unwritten_bytes
    cdef public object on_work
    cdef readonly long long forwarded
    cdef Outbox _v3, _v5, _forwards
    cdef long long _forwards_first
    cdef list _feeds, _sealed

    cdef bint forward_frame(self, Parser parser, bint v5) except -1
    cdef int drop(self, bytes topic) except -1
    cdef bint is_clogged(self) except -1
    cdef bint is_filling(self) except -1
    cdef void flush(self) except *
    cdef int _count(self, Py_ssize_t size) except -1
    @cython.locals(size=Py_ssize_t, outbox=Outbox)
    cdef int _add_frame(self, Parser parser, bint v5) except -1
    @cython.locals(size=Py_ssize_t)
    cdef bint add_publish(self, Message message, long long expiry) except -1
    @cython.locals(size=Py_ssize_t, outbox=Outbox)
    cdef int add_record(self, Py_ssize_t shard, long long timestamp, bytes value) except -1
    @cython.locals(size=Py_ssize_t, outbox=Outbox)
    cdef int add_forward(self, bytes value) except -1
    cdef int _seal_v5(self) except -1
    cdef int _seal_v3(self) except -1
    cdef int _seal_forwards(self) except -1
    cdef int _seal_feed(self, Py_ssize_t shard, Outbox outbox) except -1
    @cython.locals(at=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t)
    cdef int _seal_parts(self, int kind, int flags, long long destination, bytes item) except -1
    @cython.locals(shard=Py_ssize_t, outbox=Outbox, sealed=list)
    cpdef list take_frames(self)
    cpdef void note_unwritten(self, Py_ssize_t size) except *


cdef class PeerFlow(LogFlow):
    cdef readonly str name
    cdef readonly bint is_uplink
    cdef readonly PeerOutlet outlet
    cdef public bint is_lagging
    cdef public long long confirmed
    cdef public object on_behind

    cpdef void attach(self, Outlet channel, Py_ssize_t window) except *
    cpdef void detach(self) except *
    cpdef void discard(self) except *
    @cython.locals(outlet=PeerOutlet)
    cpdef void deliver(self, Message message, Subscription subscription, int qos, bint retain) except *
    cpdef void deliver_late(self, Message message, Subscription subscription, int qos, bint retain) except *
    @cython.locals(expiry="long long")
    cdef int _send_publish(self, PeerOutlet outlet, Message message) except -1
    @cython.locals(value=bytes)
    cdef int _forward(self, PeerOutlet outlet, Message message) except -1
    @cython.locals(outlet=PeerOutlet)
    cpdef bint take_record(self, Py_ssize_t shard, long long timestamp, bytes value) except -1


cdef class UplinkOutlet(Outlet):
    cdef readonly State state
    cdef list _by_shard

    cpdef void lead(self, list by_shard) except *
    @cython.locals(outlet=PeerOutlet)
    cdef bint forward_frame(self, Parser parser, bint v5) except -1
    cpdef PeerOutlet way_of(self, str client_id)
    cdef void flush(self) except *


cdef class UplinkFlow(PeerFlow):
    cdef readonly UplinkOutlet ways

    cpdef void attach(self, Outlet channel, Py_ssize_t window) except *
    cpdef void detach(self) except *
    @cython.locals(ways=UplinkOutlet)
    cpdef void deliver(self, Message message, Subscription subscription, int qos, bint retain) except *
    cpdef void deliver_late(self, Message message, Subscription subscription, int qos, bint retain) except *


cdef bytes _encode(State state, Message message)


cdef class SilentFlow(LogFlow):
    cpdef void deliver(self, Message message, Subscription subscription, int qos, bint retain) except *
    cpdef void deliver_late(self, Message message, Subscription subscription, int qos, bint retain) except *
