cimport cython

from braidmq.lane.path.message cimport Message, from_record
from braidmq.lane.path.outlet cimport Outlet
from braidmq.lane.recording.commit_outcomes cimport CommitOutcomes
from braidmq.lane.recording.recorder cimport Recorder
from braidmq.lane.routing.routes cimport Route, RouteTable
from braidmq.lane.records.records cimport Record

cdef int _END, _FIRST
cdef Py_ssize_t _VALUE_BYTES_MAX


@cython.locals(record=Record, message=Message)
cpdef Message read_plain(bytes value, object client_id)


@cython.freelist(1024)
cdef class NodeEntry:
    cdef readonly Py_ssize_t index
    cdef readonly object entry, client
    cdef readonly Message message
    cdef readonly bytes value
    cdef readonly bint is_plain


@cython.locals(count=Py_ssize_t, index=Py_ssize_t, last="long long", channel="long long", value=bytes, message=Message)
cpdef Py_ssize_t read_run(list entries, Py_ssize_t start, object kind, dict clients, list found) except -1


cdef class EntryWaiter(Outlet):
    cdef readonly dict codes
    cdef public Py_ssize_t left
    cdef readonly list live
    cdef readonly bint is_written

    cpdef void settle(self, object flow, int qos, int packet_id, int code) except *
    cpdef void on_end(self) except *
    cpdef void on_ready(self) except *


cdef class NodeEntries:
    cdef readonly Recorder recorder
    cdef readonly RouteTable routes

    @cython.locals(
        outcomes=CommitOutcomes, live=list, count=Py_ssize_t, place=Py_ssize_t, is_shown=bint, sent=NodeEntry, message=Message,
        route=Route, session_only=bint
    )
    cpdef Py_ssize_t publish(self, list messages, Py_ssize_t start, int shard, EntryWaiter waiter) except -1
