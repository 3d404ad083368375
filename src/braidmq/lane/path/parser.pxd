cdef int check_topic(const unsigned char* p, Py_ssize_t n, Py_ssize_t levels_max) noexcept nogil

cdef class Parser:
    cdef object buffer
    cdef const unsigned char* p
    cdef Py_ssize_t have
    cdef public Py_ssize_t frame_max
    cdef public Py_ssize_t start, end, body
    cdef public int kind, flags, error
    cdef public int qos, packet_id, reason, alias, payload_format
    cdef public bint retain, dup
    cdef public Py_ssize_t topic_at, topic_bytes, properties_at, properties_bytes, payload_at
    cdef public Py_ssize_t alias_at, expiry_at
    cdef public unsigned int expiry

    cpdef void load(self, object buffer, Py_ssize_t have, Py_ssize_t frame_max) except *
    cpdef int next(self)
    cpdef int parse_publish(self, bint v5)
    cpdef int parse_ack(self, bint v5)
    cpdef bint topic_is(self, bytes topic)
    cpdef bytes topic(self)
    cpdef bytes payload(self)
    cpdef bytes properties(self)
    cpdef Py_ssize_t expiry_offset(self)
    cpdef bytes frame(self)
    cpdef bytes frame_body(self)
    cdef int parse_properties(self) noexcept
