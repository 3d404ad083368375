from braidmq.lane.path.parser cimport Parser

cdef class Outbox:
    cdef char* data
    cdef readonly Py_ssize_t size
    cdef Py_ssize_t capacity

    cdef char* room(self, Py_ssize_t n) except NULL
    cpdef void push(self, bytes data) except *
    cpdef void push_frame(self, Parser parser) except *
    cpdef void push_record(self, long long timestamp, bytes value) except *
    cpdef void push_ack(self, int first_byte, int packet_id, int reason) except *
    cpdef Py_ssize_t push_publish(self, int first_byte, bytes topic, int packet_id, bint v5, bytes properties,
                                  bytes identifiers, bytes payload, int alias, long long expiry,
                                  Py_ssize_t expiry_offset, Py_ssize_t frame_max) except? -1
    cpdef bytes take(self)
    cpdef Py_ssize_t send_to(self, int fd) except? -1
    cdef void shrink(self) noexcept
