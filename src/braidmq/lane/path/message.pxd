cimport cython

from braidmq.lane.path.expiry cimport from_wall, seconds_left, to_wall, wall_offset
from braidmq.lane.records.records cimport Record
from braidmq.lane.path.parser cimport Parser


cdef class Message:
    cdef readonly bytes topic, payload, properties
    cdef readonly int qos
    cdef readonly bint retain
    cdef readonly object publisher
    cdef readonly double expires_at
    cdef readonly Py_ssize_t expiry_offset
    cdef readonly int shard
    cdef readonly long long timestamp

    cdef void _set(self, bytes topic, bytes payload, int qos, bint retain, object publisher) noexcept
    cpdef void set_properties(self, bytes properties, double expires_at, Py_ssize_t expiry_offset) except *
    cpdef void set_position(self, int shard, long long timestamp) except *
    cpdef Message unrecorded(self)
    cpdef Message in_place_of(self, Message original)
    cpdef long long seconds_left(self) except? -2
    cpdef long long wall_expiry(self) except -1
    cpdef Py_ssize_t cost(self)


@cython.locals(message=Message)
cpdef Message from_parser(Parser parser, bytes topic, object publisher, double now)
@cython.locals(message=Message, properties=bytes, expires_at="long long")
cpdef Message from_record(int shard, Record record)
