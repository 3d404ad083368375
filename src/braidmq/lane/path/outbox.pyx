# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The bytes waiting to be written to one client.

The compiled form; ``outbox.py`` is its plain twin and has the contract of every method.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove

from braidmq.lane.path.parser cimport Parser

cdef extern from "<sys/socket.h>" nogil:
    enum: MSG_DONTWAIT
    enum: MSG_NOSIGNAL
    ssize_t send(int fd, const void* data, size_t size, int flags)

cdef enum:
    KEPT_CAPACITY = 256  # the most that an idle client keeps allocated


cdef inline Py_ssize_t varint_bytes(Py_ssize_t n) noexcept:
    return 1 if n < 128 else 2 if n < 16384 else 3 if n < 2097152 else 4


cdef inline char* put_varint(char* q, Py_ssize_t n) noexcept:
    while n >= 128:
        q[0] = <char>((n & 127) | 128)
        n >>= 7
        q += 1
    q[0] = <char>n
    return q + 1


cdef class Outbox:

    def __dealloc__(self):
        free(self.data)

    cdef char* room(self, Py_ssize_t n) except NULL:
        """Make room for ``n`` more bytes and return its address; the caller must fill all of it."""
        cdef Py_ssize_t need = self.size + n, capacity
        cdef char* grown
        if need > self.capacity:
            capacity = self.capacity * 2
            if capacity < need:
                capacity = need
            if capacity < 128:
                capacity = 128
            grown = <char*>realloc(self.data, capacity)
            if grown == NULL:
                raise MemoryError()
            self.data = grown
            self.capacity = capacity
        grown = self.data + self.size
        self.size = need
        return grown

    cpdef void push(self, bytes data) except *:
        cdef Py_ssize_t n = PyBytes_GET_SIZE(data)
        memcpy(self.room(n), PyBytes_AS_STRING(data), n)

    cpdef void push_frame(self, Parser parser) except *:
        cdef Py_ssize_t n = parser.end - parser.start
        memcpy(self.room(n), parser.p + parser.start, n)

    cpdef void push_record(self, long long timestamp, bytes value) except *:
        cdef Py_ssize_t n = PyBytes_GET_SIZE(value)
        cdef char* q = self.room((12 if timestamp else 4) + n)
        cdef int shift
        if timestamp:
            for shift in range(56, -8, -8):
                q[0] = <char>(timestamp >> shift)
                q += 1
        for shift in range(24, -8, -8):
            q[0] = <char>(n >> shift)
            q += 1
        memcpy(q, PyBytes_AS_STRING(value), n)

    cpdef void push_ack(self, int first_byte, int packet_id, int reason) except *:
        cdef char* q = self.room(5 if reason else 4)
        q[0] = <char>first_byte
        q[1] = 3 if reason else 2
        q[2] = <char>(packet_id >> 8)
        q[3] = <char>packet_id
        if reason:
            q[4] = <char>reason

    cpdef Py_ssize_t push_publish(self, int first_byte, bytes topic, int packet_id, bint v5, bytes properties,
                                  bytes identifiers, bytes payload, int alias, long long expiry,
                                  Py_ssize_t expiry_offset, Py_ssize_t frame_max) except? -1:
        cdef Py_ssize_t topic_n = PyBytes_GET_SIZE(topic), payload_n = PyBytes_GET_SIZE(payload)
        cdef Py_ssize_t properties_n = 0, identifiers_n = 0, extra_n = 0, length, total
        cdef char* q
        cdef char* at
        if alias < 0:  # the client knows this alias already
            topic_n = 0
        length = 2 + topic_n + payload_n
        if packet_id:
            length += 2
        if v5:
            properties_n = PyBytes_GET_SIZE(properties)
            identifiers_n = PyBytes_GET_SIZE(identifiers)
            extra_n = properties_n + identifiers_n + (3 if alias else 0)
            length += varint_bytes(extra_n) + extra_n
        total = 1 + varint_bytes(length) + length
        if total > frame_max or length > 268435455:
            return 0
        q = self.room(total)
        q[0] = <char>first_byte
        q = put_varint(q + 1, length)
        q[0] = <char>(topic_n >> 8)
        q[1] = <char>topic_n
        q += 2
        memcpy(q, PyBytes_AS_STRING(topic), topic_n)
        q += topic_n
        if packet_id:
            q[0] = <char>(packet_id >> 8)
            q[1] = <char>packet_id
            q += 2
        if v5:
            q = put_varint(q, extra_n)
            memcpy(q, PyBytes_AS_STRING(properties), properties_n)
            if expiry >= 0 and expiry_offset >= 0:
                at = q + expiry_offset
                at[0] = <char>(expiry >> 24)
                at[1] = <char>(expiry >> 16)
                at[2] = <char>(expiry >> 8)
                at[3] = <char>expiry
            q += properties_n
            memcpy(q, PyBytes_AS_STRING(identifiers), identifiers_n)
            q += identifiers_n
            if alias:
                if alias < 0:
                    alias = -alias
                q[0] = 0x23
                q[1] = <char>(alias >> 8)
                q[2] = <char>alias
                q += 3
        memcpy(q, PyBytes_AS_STRING(payload), payload_n)
        return total

    cpdef bytes take(self):
        cdef bytes taken = PyBytes_FromStringAndSize(self.data, self.size)
        self.shrink()
        return taken

    cpdef Py_ssize_t send_to(self, int fd) except? -1:
        cdef ssize_t sent = send(fd, self.data, self.size, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent == self.size:
            self.shrink()
            return sent
        if sent <= 0:
            return 0
        self.size -= sent
        memmove(self.data, self.data + sent, self.size)
        return sent

    cdef void shrink(self) noexcept:
        """Clear the outbox and free all but a little memory."""
        self.size = 0
        if self.capacity > KEPT_CAPACITY:
            free(self.data)
            self.data = NULL
            self.capacity = 0
