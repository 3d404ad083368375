cimport cython

from braidmq.lane.flow cimport Flow
from braidmq.lane.lane cimport Lane
from braidmq.lane.message cimport Message
from braidmq.lane.outlet cimport Outlet
from braidmq.lane.routes cimport Route
from braidmq.lane.state cimport Counters


cdef class Producer:
    cdef readonly bytes name
    cdef readonly int shard
    cdef public long long sequence
    cdef readonly bint stops
    cdef public bint is_stopped, is_keyed
    cdef public object row
    cdef public Message sent


@cython.freelist(1024)
cdef class Pending:
    cdef readonly Message message
    cdef readonly Flow flow
    cdef Outlet channel
    cdef int ack_qos, packet_id, shard
    cdef Py_ssize_t place
    cdef public bint is_delivered
    cdef readonly bint is_refused
    cdef public object on_commit, on_refused


cdef class Block:
    cdef readonly dict entries
    cdef readonly list changes
    cdef readonly Py_ssize_t size_bytes
    cdef Recorder _recorder
    cdef list _pendings
    cdef dict _producers

    cdef void add(self, Pending pending) except *
    cdef void mark(self, Producer producer, Message message) except *
    @cython.locals(producer=Producer)
    cpdef void stop_producers(self) except *


cdef class Recorder:
    cdef readonly Lane lane
    cdef public object on_block, deliver, on_fault
    cdef public bint is_congested
    cdef Block _block
    cdef bytes _last_topic
    cdef Route _last_route
    cdef long long _last_version

    cdef Block _open(self)
    cpdef Block take(self)
    @cython.locals(block=Block, pending=Pending, shard=int, expires_at="long long", value=bytes, entries=list)
    cpdef Pending record(self, Message message, Flow flow, Outlet channel, int ack_qos, int packet_id, bint session_only)
    @cython.locals(block=Block, pending=Pending)
    cpdef Pending await_rows(self, Message message, Flow flow, Outlet channel, int ack_qos, int packet_id)
    cpdef void change(self, object change) except *
    @cython.locals(block=Block)
    cdef void mark(self, Producer producer, Message message) except *
    @cython.locals(marks=list, timestamp="long long", pending=Pending, message=Message, code=int)
    cpdef void conclude(self, list pendings, dict stamps) except *
    @cython.locals(lane=Lane, route=Route)
    cdef Py_ssize_t _publish(self, Message message, Flow flow) except? -1
    cdef void _report(self, object problem) except *
    @cython.locals(flow=Flow, channel=Outlet, times=Py_ssize_t)
    cdef void _acknowledge(self, Pending pending, int code) except *
    @cython.locals(counters=Counters, pending=Pending, flow=Flow)
    cpdef void refuse(self, list pendings, bint is_in_doubt) except *
