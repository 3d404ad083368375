cimport cython

from braidmq.lane.flows.flow cimport Flow
from braidmq.lane.path.lane cimport Lane
from braidmq.lane.path.message cimport Message
from braidmq.lane.path.outlet cimport Outlet
from braidmq.lane.routing.routes cimport Route
from braidmq.lane.path.state cimport State
from braidmq.lane.routing.subscription cimport Subscription

cdef int _NO_MATCHING_SUBSCRIBERS, _PENDING_COST, _SHOW_WORK, _PARTS, _LATE_BYTES, _LATE_MESSAGES, _WIDE, _REJECTED
cdef long long _NO_BOUND
cdef Py_ssize_t _LARGE_BYTES


@cython.freelist(1024)
cdef class Pending:
    cdef readonly Message message
    cdef readonly Flow flow
    cdef readonly Outlet channel
    cdef readonly int ack_qos, packet_id, shard
    cdef readonly Py_ssize_t place
    cdef long long timestamp
    cdef int code
    cdef bytes value
    cdef public bint is_delivered
    cdef readonly bint is_refused
    cdef bint is_repeatable
    cdef public object on_commit, on_refused

    cdef void _set(self, Message message, Flow flow) noexcept
    cdef Py_ssize_t cost(self) except -1


@cython.locals(pending=Pending)
cpdef Pending new_pending(Message message, Flow flow)


cdef class CommitOutcomes:
    cdef readonly Lane lane
    cdef public object deliver, on_congested, on_fault, on_late, on_more
    cdef readonly bint is_late
    cdef readonly Py_ssize_t backlog_bytes
    cdef object _backlog, _congested
    cdef Pending _current
    cdef Py_ssize_t _reached, _place, _queued
    cdef bint _is_faulty, _is_due
    cdef list _targets
    cdef long long _part_version, _turn, _left
    cdef bytes _last_topic
    cdef Route _last_route
    cdef long long _last_version

    @cython.locals(pending=Pending)
    cpdef void conclude(self, list pendings, dict stamps) except *
    @cython.locals(pending=Pending)
    cpdef void show(self, Message message, Flow flow, Outlet channel, int ack_qos, int packet_id) except *
    @cython.locals(pending=Pending)
    cpdef void show_entry(self, Message message, bytes value, Outlet channel, int packet_id) except *
    @cython.locals(pending=Pending)
    cpdef void show_record(self, Message message) except *
    cpdef void end_records(self) except *
    cpdef void advance_marks(self, list positions) except *
    @cython.locals(marker=Pending)
    cpdef void after_shown(self, object callback) except *
    @cython.locals(pending=Pending, code=int)
    cpdef void answer(self, list pendings, list codes) except *
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
    cdef bint _is_from_elsewhere(self, Pending pending) except -1
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
    @cython.locals(flow=Flow, channel=Outlet, times=Py_ssize_t)
    cdef int _reject(self, Pending pending, bint is_in_doubt) except -1
    @cython.locals(pending=Pending)
    cpdef void refuse(self, list pendings, bint is_in_doubt) except *
