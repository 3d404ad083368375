cimport cython

from braidmq.lane.recording.commit_outcomes cimport CommitOutcomes
from braidmq.lane.path.lane cimport Lane
from braidmq.lane.path.message cimport Message, from_record, from_parser
from braidmq.lane.path.outlet cimport Outlet
from braidmq.lane.peers.peer cimport PeerFlow
from braidmq.lane.routing.routes cimport Route
from braidmq.lane.path.parser cimport Parser
from braidmq.lane.path.state cimport Counters, State
from braidmq.lane.records.records cimport Record

cdef int _QOS0, _FORWARD, _FEED, _V5, _CONTINUED
cdef Py_ssize_t _FEED_HEAD, _FORWARD_HEAD, _RECORD_WORK, _RESOLVE_WORK, _LONG_WORK


cdef class PeerReceiver:
    cdef readonly Lane lane
    cdef readonly CommitOutcomes outcomes
    cdef readonly PeerFlow source
    cdef readonly Py_ssize_t item_bytes_max
    cdef public object on_slow
    cdef readonly long long messages
    cdef list _parts
    cdef Py_ssize_t _part_bytes
    cdef int _kind, _flags
    cdef long long _destination
    cdef bytes _body
    cdef Py_ssize_t _at
    cdef bytes _last_topic
    cdef Route _last_route
    cdef long long _last_version

    @cython.locals(first=tuple)
    cpdef bint take(self, int kind, int flags, long long destination, bytes body) except? -1
    @cython.locals(is_done=bint)
    cpdef bint go_on(self) except? -1
    @cython.locals(outlet=Outlet, was_muted=bint)
    cdef bint _run_frames_muted(self) except? -1
    @cython.locals(lane=Lane, state=State, parser=Parser, body=bytes, v5=bint, status=int, route=Route, message=Message, size=Py_ssize_t)
    cdef bint _run_frames(self) except? -1
    @cython.locals(lane=Lane, visited="long long", topic=bytes)
    cdef Route _find_route(self, Parser parser)
    @cython.locals(state=State, outcomes=CommitOutcomes, body=bytes, head=Py_ssize_t, at=Py_ssize_t, end=Py_ssize_t, size=Py_ssize_t,
                   shard=int, timestamp="long long")
    cdef bint _run_records(self) except? -1


@cython.locals(number="unsigned long long", end=Py_ssize_t)
cdef unsigned long long _number(bytes body, Py_ssize_t at, int count) except? 0
@cython.locals(record=Record, message=Message)
cdef Message _message(int shard, long long timestamp, bytes value)
