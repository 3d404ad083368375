from libc.stdint cimport uint8_t, uint32_t, uint64_t


cdef int check_value(bytes value) except -1


cdef class Record:
    cdef readonly long long timestamp
    cdef readonly bytes value
    # Where the fields are; set when the first of them is read, before that payload_at is 0.
    cdef Py_ssize_t topic_end, publisher_end, properties_at, payload_at

    cdef void point(self) noexcept
    cdef const uint8_t* at(self, Py_ssize_t place) noexcept
    cdef bytes between(self, Py_ssize_t begin, Py_ssize_t end)
    cdef Py_ssize_t expiry_at(self) noexcept


cdef Record make_record(long long timestamp, bytes value)


cdef class TopicFilters:
    cdef bint with_session_only, everything
    cdef frozenset exact
    cdef list wild

    cdef bint match(self, const char* topic, Py_ssize_t size) except -1
    cdef bint match_value(self, bytes value) except -1
