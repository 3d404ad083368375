cimport cython

from braidmq.lane.recording.commit_outcomes cimport Pending
from braidmq.lane.flows.flow cimport Flow
from braidmq.lane.path.channel_reader cimport ChannelReader
from braidmq.lane.path.lane cimport Lane
from braidmq.lane.path.message cimport Message, from_parser
from braidmq.lane.recording.recorder cimport Producer, Recorder
from braidmq.lane.routing.routes cimport Route, RouteTable
from braidmq.lane.path.parser cimport Parser
from braidmq.lane.flows.session_queue cimport SessionQueue
from braidmq.lane.path.state cimport Counters, State
from braidmq.lane.routing.subscription cimport Subscription
from braidmq.lane.path.topic_aliases cimport TopicAliases
from braidmq.lane.path.verdicts cimport Verdicts
from braidmq.lane.path.writer cimport Writer


cdef int _COLD_WORK, _TOPIC_SHIFT, _WRITE_SHIFT
cdef Py_ssize_t _LARGE_BYTES


cdef class Channel(ChannelReader):
    cdef public Recorder recorder
    cdef public Producer producer
    cdef public Flow flow
    cdef public SessionQueue held_by
    cdef public bint is_restricted, is_strict_payload, wants_room
    cdef public Py_ssize_t receive_maximum, unreleased, alias_in_max
    cdef TopicAliases _aliases_in
    cdef Verdicts _verdicts
    cdef bytes _last_topic
    cdef Route _last_route
    cdef long long _last_version

    @cython.locals(
        lane=Lane, counters=Counters, flow=Flow, code=int, qos=int, route=Route, message=Message, producer=Producer, is_long=bint
    )
    cdef void _on_publish_frame(self, Parser parser) except *
    @cython.locals(state=State, congested=SessionQueue)
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
    cdef Route _find_route(self, Parser parser)
    @cython.locals(topic=bytes, known=bytes, aliases=TopicAliases)
    cdef bytes _find_topic(self, Parser parser)
    @cython.locals(verdicts=Verdicts)
    cdef bint _may_publish(self, bytes topic) except -1
    @cython.locals(code=int)
    cdef bint _on_ack_frame(self, Parser parser) except -1
    cpdef void want_room(self) except *
    @cython.locals(counters=Counters, flow=Flow, known=int)
    cpdef void acknowledged(self, int kind, int packet_id, int reason) except *
    @cython.locals(was_full=bint)
    cdef void flush(self) except *
