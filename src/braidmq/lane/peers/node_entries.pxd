cimport cython

from braidmq.lane.path.message cimport Message, from_record
from braidmq.lane.path.outlet cimport Outlet
from braidmq.lane.recording.recorder cimport Recorder
from braidmq.lane.routing.routes cimport Route, RouteTable
from braidmq.lane.records.records cimport Record

cdef int _TAKEN, _LIVE, _LONG_WAY, _END, _FIRST
cdef Py_ssize_t _VALUE_BYTES_MAX


@cython.locals(record=Record, message=Message)
cpdef Message read_plain(bytes value, object client_id)


cdef class EntryWaiter(Outlet):
    cdef readonly dict codes
    cdef public Py_ssize_t left

    cpdef void settle(self, object flow, int qos, int packet_id, int code) except *
    cpdef void on_end(self) except *
    cpdef void on_ready(self) except *


cdef class NodeEntries:
    cdef readonly Recorder recorder
    cdef readonly RouteTable routes

    @cython.locals(route=Route)
    cpdef int record(self, Message message, bytes value, int shard, EntryWaiter waiter, int number) except -1
