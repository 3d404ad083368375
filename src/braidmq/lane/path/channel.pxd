cimport cython

from braidmq.lane.path.flow cimport Flow
from braidmq.lane.path.lane cimport Lane
from braidmq.lane.path.message cimport Message, from_scan
from braidmq.lane.path.recorder cimport Pending, Producer, Recorder
from braidmq.lane.path.routes cimport Route, RouteTable
from braidmq.lane.path.scanner cimport Scanner
from braidmq.lane.path.state cimport Counters, State
from braidmq.lane.path.subscription cimport Subscription
from braidmq.lane.path.topic_aliases cimport TopicAliases
from braidmq.lane.path.verdicts cimport Verdicts
from braidmq.lane.path.writer cimport Writer


cdef Py_ssize_t _LARGE_BYTES


cdef class Channel(Writer):
    cdef readonly Lane lane
    cdef public Recorder recorder
    cdef public Producer producer
    cdef public Py_ssize_t frame_max
    cdef public Flow flow, held_by
    cdef public double last_seen
    cdef readonly long long bytes_received, messages_received
    cdef public bint is_greeted, is_open, is_restricted, is_metered, is_strict_payload, wants_room
    cdef readonly int hold_bits
    cdef public Py_ssize_t receive_maximum, unreleased, alias_in_max
    cdef TopicAliases _aliases_in
    cdef Verdicts _verdicts
    cdef readonly bytearray _rest
    cdef Py_ssize_t _carried
    cdef bytes _last_topic
    cdef Route _last_route
    cdef long long _last_version

    @cython.locals(state=State, before="long long", rest=bytearray)
    cdef void _take(self, object buffer, Py_ssize_t have, Py_ssize_t fresh) except *
    cdef void _keep(self, object buffer, Py_ssize_t start, Py_ssize_t have) except *
    @cython.locals(lane=Lane, state=State, counters=Counters, scan=Scanner, status=int, kind=int, is_large=bint, before="long long")
    cdef void _run(self, object buffer, Py_ssize_t have) except *
    @cython.locals(
        lane=Lane, counters=Counters, flow=Flow, code=int, qos=int, route=Route, message=Message, producer=Producer, is_long=bint
    )
    cdef void _on_publish_frame(self, Scanner scan) except *
    @cython.locals(state=State, congested=Flow)
    cdef void _wait_for_congested(self, Flow flow) except *
    cpdef Pending record(
        self, Message message, int qos, int packet_id, bint session_only, bint is_recorded=*, Message sent=*, object key_row=*
    )
    @cython.locals(recorder=Recorder, flow=Flow, pending=Pending)
    cdef Pending _record(
        self, Message message, int qos, int packet_id, bint session_only, bint is_recorded, Message sent, object key_row
    )
    cpdef void settle(self, object flow, int qos, int packet_id, int code) except *
    @cython.locals(flow=Flow)
    cdef bint _acknowledge(self, int qos, int packet_id, int code) except -1
    @cython.locals(counters=Counters)
    cdef bint _send_acknowledgement(self, int qos, int packet_id, int code) except -1
    @cython.locals(lane=Lane, route=Route, topic=bytes, visited="long long")
    cdef Route _find_route(self, Scanner scan)
    @cython.locals(topic=bytes, known=bytes, aliases=TopicAliases)
    cdef bytes _find_topic(self, Scanner scan)
    @cython.locals(verdicts=Verdicts)
    cdef bint _may_publish(self, bytes topic) except -1
    @cython.locals(code=int)
    cdef bint _on_ack_frame(self, Scanner scan) except -1
    cpdef void want_room(self) except *
    @cython.locals(counters=Counters, flow=Flow, known=int)
    cpdef void acknowledged(self, int kind, int packet_id, int reason) except *
    @cython.locals(was_full=bint)
    cdef void flush(self) except *
