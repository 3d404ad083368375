cimport cython

from braidmq.lane.path.flow cimport Flow
from braidmq.lane.path.lane cimport Lane
from braidmq.lane.path.message cimport Message
from braidmq.lane.path.outlet cimport Outlet
from braidmq.lane.path.routes cimport Route
from braidmq.lane.path.state cimport Counters, State
from braidmq.lane.path.subscription cimport Subscription

cdef int _NO_MATCHING_SUBSCRIBERS, _PENDING_COST, _SHOW_WORK, _PARTS, _LATE_BYTES, _LATE_MESSAGES, _WIDE
cdef long long _NO_BOUND
cdef Py_ssize_t _LARGE_BYTES, _VALUE_BYTES_MAX


cdef class Producer:
    cdef readonly bytes name
    cdef readonly int shard
    cdef public long long sequence
    cdef readonly bint stops
    cdef public bint is_stopped, is_keyed


@cython.freelist(1024)
cdef class Pending:
    cdef readonly Message message
    cdef readonly Flow flow
    cdef Outlet channel
    cdef int ack_qos, packet_id, shard
    cdef Py_ssize_t place
    cdef long long timestamp
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
    cdef public object on_block, deliver, on_fault, on_late, on_more
    cdef public bint is_congested
    cdef readonly bint is_late
    cdef readonly Py_ssize_t backlog_bytes
    cdef object _backlog, _congested
    cdef Pending _current
    cdef Py_ssize_t _reached, _place, _queued
    cdef bint _is_faulty, _is_due
    cdef list _targets
    cdef long long _part_version, _turn, _left
    cdef Block _block
    cdef bytes _last_topic
    cdef Route _last_route
    cdef long long _last_version

    cdef Block _open(self)
    cpdef Block take(self)
    @cython.locals(block=Block, pending=Pending, shard=int, value=bytes, entries=list)
    cpdef Pending record(self, Message message, Flow flow, Outlet channel, int ack_qos, int packet_id, bint session_only)
    @cython.locals(block=Block, pending=Pending)
    cpdef Pending await_rows(self, Message message, Flow flow, Outlet channel, int ack_qos, int packet_id)
    cpdef void change(self, object change) except *
    @cython.locals(block=Block)
    cdef void mark(self, Producer producer, Message sent, object key_row) except *
    @cython.locals(pending=Pending)
    cpdef void conclude(self, list pendings, dict stamps) except *
    @cython.locals(pending=Pending)
    cpdef void show(self, Message message, Flow flow, Outlet channel, int ack_qos, int packet_id) except *
    @cython.locals(pending=Pending)
    cpdef void go_on(self) except *
    @cython.locals(state=State)
    cdef int _show(self, Pending pending) except -1
    @cython.locals(waiting=Py_ssize_t, part=Py_ssize_t, is_late=bint)
    cdef void _end_callback(self) except *
    @cython.locals(state=State)
    cdef int _begin(self, Pending pending) except -1
    @cython.locals(pending=Pending, state=State, before="long long", is_done=bint)
    cdef int _advance(self) except -1
    @cython.locals(state=State, is_unheard=bint)
    cdef int _finish_showing(self, Pending pending) except -1
    @cython.locals(lane=Lane, route=Route, message=Message)
    cdef bint _deliver(self, Pending pending) except? -1
    cdef Py_ssize_t _hand_over(self, Message message, Route route, Flow flow) except? -1
    @cython.locals(state=State, targets=list, count=Py_ssize_t, before="long long", unheard="long long", part=Route, some=list,
                   weight=Py_ssize_t, weight_max=Py_ssize_t, subscription=Subscription, flow=Flow)
    cdef bint _deliver_parts(self, Pending pending, Route route) except? -1
    cdef void _report(self, object problem) except *
    @cython.locals(flow=Flow, channel=Outlet, times=Py_ssize_t)
    cdef int _acknowledge(self, Pending pending, int code) except -1
    cdef int _end_large(self, Pending pending) except -1
    @cython.locals(counters=Counters, pending=Pending, flow=Flow)
    cpdef void refuse(self, list pendings, bint is_in_doubt) except *
