cimport cython

from braidmq.lane.routing.delivery_rules cimport copy_qos, copy_retain, for_publisher, live_for
from braidmq.lane.flows.flow cimport Flow
from braidmq.lane.path.message cimport Message
from braidmq.lane.path.outlet cimport Outlet
from braidmq.lane.routing.routes cimport Route, RouteTable
from braidmq.lane.path.parser cimport Parser
from braidmq.lane.path.state cimport Counters, State
from braidmq.lane.routing.subscription cimport Subscription

cdef Py_ssize_t _ASK_WORK


cdef class Lane:
    cdef readonly State state
    cdef readonly RouteTable routes
    cdef readonly Parser parser
    cdef readonly bytearray buffer
    cdef readonly object view

    cpdef Py_ssize_t publish(self, Message message, Route route, Flow publisher) except? -1
    cpdef Py_ssize_t publish_asking(self, Message message, Route route, Flow publisher, object ask) except? -1
    @cython.locals(outlet=Outlet, was_muted=bint)
    cdef Py_ssize_t _publish_muted(self, Message message, Route route, Flow publisher, object ask) except? -1
    @cython.locals(state=State, counters=Counters, reached=Py_ssize_t, subscription=Subscription, flow=Flow, given=Message)
    cdef Py_ssize_t _publish(self, Message message, Route route, object ask) except? -1
    @cython.locals(state=State, counters=Counters, message=Message, reached=Py_ssize_t, sent=Py_ssize_t, unchanged=bint,
                   subscription=Subscription, flow=Flow, channel=Outlet, client_id=str)
    cpdef void forward(self, Parser parser, Route route, Flow publisher, bint v5) except *
    @cython.locals(state=State, dirty=list, channel=Outlet)
    cpdef void flush(self) except *
    @cython.locals(state=State, late=list, channel=Outlet)
    cpdef void end_turn(self) except *
