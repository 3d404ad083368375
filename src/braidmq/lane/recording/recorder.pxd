cimport cython

from braidmq.lane.recording.commit_outcomes cimport CommitOutcomes, Pending, new_pending
from braidmq.lane.flows.flow cimport Flow
from braidmq.lane.path.lane cimport Lane
from braidmq.lane.path.message cimport Message
from braidmq.lane.path.outlet cimport Outlet

cdef int _PENDING_COST, _SESSION_ONLY
cdef Py_ssize_t _VALUE_BYTES_MAX


cdef class Producer:
    cdef readonly bytes name
    cdef readonly int shard
    cdef public long long sequence
    cdef readonly bint stops
    cdef public bint is_stopped, is_keyed


cdef class Block:
    cdef readonly dict entries
    cdef readonly list changes
    cdef readonly Py_ssize_t size_bytes
    cdef CommitOutcomes _outcomes
    cdef readonly list pendings
    cdef dict _producers
    cdef list _relayed

    cdef void add(self, Pending pending) except *
    cdef void mark(self, Producer producer, Message message, object key) except *
    cdef void relay_mark(self, int shard, bytes name, long long sequence, long long check) except *
    @cython.locals(
        found=list, pendings=list, count=Py_ssize_t, index=Py_ssize_t, start=Py_ssize_t, pending=Pending, flow=Flow, shard=int,
        place=Py_ssize_t, values=list, size=Py_ssize_t, entries=list, value=bytes
    )
    cpdef list runs(self)
    @cython.locals(producer=Producer)
    cpdef void stop_producers(self) except *


cdef class Recorder:
    cdef readonly CommitOutcomes outcomes
    cdef public object on_block
    cdef public bint is_congested, is_remote, keeps_values
    cdef public object stalled
    cdef Block _block

    cdef Block _open(self)
    cpdef Block take(self)
    cpdef bint holds(self, Flow flow) except -1
    @cython.locals(value=bytes)
    cpdef Pending record(self, Message message, Flow flow, Outlet channel, int ack_qos, int packet_id, bint session_only)
    @cython.locals(flags=int, patched=int)
    cpdef Pending record_value(
        self, Message message, bytes value, int shard, bint session_only, Flow flow, Outlet channel, int ack_qos, int packet_id
    )
    @cython.locals(block=Block, pending=Pending, entries=list)
    cdef Pending _add(
        self, Message message, bytes value, int shard, Flow flow, Outlet channel, int ack_qos, int packet_id
    )
    @cython.locals(block=Block, pending=Pending)
    cpdef Pending await_rows(self, Message message, Flow flow, Outlet channel, int ack_qos, int packet_id)
    cpdef void change(self, object change) except *
    @cython.locals(block=Block)
    cdef void mark(self, Producer producer, Message sent, object key_row) except *
    cpdef void mark_entry(self, int shard, bytes name, long long sequence, long long check) except *
