cimport cython

from braidmq.lane.flow cimport Flow
from braidmq.lane.message cimport Message
from braidmq.lane.outlet cimport Outlet
from braidmq.lane.routes cimport Route, RouteTable, Subscription
from braidmq.lane.scanner cimport Scanner
from braidmq.lane.state cimport Counters, State


cdef class Lane:
    cdef readonly State state
    cdef readonly RouteTable routes
    cdef readonly Scanner scan
    cdef readonly bytearray buffer
    cdef readonly object view

    @cython.locals(state=State, counters=Counters, reached=Py_ssize_t, subscription=Subscription, flow=Flow, qos=int)
    cpdef Py_ssize_t publish(self, Message message, Route route, Flow publisher) except? -1
    @cython.locals(state=State, counters=Counters, message=Message, reached=Py_ssize_t, sent=Py_ssize_t, unchanged=bint,
                   subscription=Subscription, flow=Flow, channel=Outlet)
    cpdef void forward(self, Scanner scan, Route route, Flow publisher, bint v5) except *
    @cython.locals(state=State, dirty=list, channel=Outlet)
    cpdef void flush(self) except *
    @cython.locals(state=State, late=list, channel=Outlet)
    cpdef void end_turn(self) except *
