cimport cython


cdef class Inbound:
    cdef set _received
    cdef bytearray _bits
    cdef int _received_count
    cdef dict _pending

    @cython.locals(received=set, bits=bytearray, each=int)
    cpdef bint receive(self, int packet_id) except -1
    @cython.locals(bits=bytearray)
    cpdef bint is_receiving(self, int packet_id) except -1
    @cython.locals(bits=bytearray)
    cpdef bint forget_received(self, int packet_id) except -1
    cpdef void forget_all_received(self) except *
    cpdef void expect_commit(self, int packet_id) except *
    @cython.locals(pending=dict)
    cpdef bint is_pending(self, int packet_id) except -1
    @cython.locals(pending=dict)
    cpdef void forget_waiting(self) except *
    cpdef Py_ssize_t end_pending(self, int packet_id) except? -1
