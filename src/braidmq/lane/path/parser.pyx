# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Finds complete frames in a receive buffer and parses PUBLISH and acknowledgements in place.

The compiled form; ``parser.py`` is its plain twin and has the contract of every method. Every read of ``p`` below is at an
offset that the lines before it have compared with the end of the frame.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_Check
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcmp

NEED_MORE = 0
FRAME = 1
VIOLATION = -1

cdef enum:
    MALFORMED = 0x81
    PROTOCOL_ERROR = 0x82
    TOPIC_NAME_INVALID = 0x90
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    TOPIC_BYTES_MAX = 65535  # the length has two bytes; a topic that the broker builds might be longer


cdef int check_text(const unsigned char* p, Py_ssize_t n) noexcept nogil:
    """0 if these bytes are UTF-8 as [MQTT-1.5.4-1] and [MQTT-1.5.4-2] require, else MALFORMED."""
    cdef Py_ssize_t i = 0
    cdef unsigned char c
    while i < n:
        c = p[i]
        if c < 0x80:
            if c == 0:
                return MALFORMED
            i += 1
        elif c < 0xC2:
            return MALFORMED
        elif c < 0xE0:
            if n - i < 2 or (p[i + 1] & 0xC0) != 0x80:
                return MALFORMED
            i += 2
        elif c < 0xF0:
            if n - i < 3 or (p[i + 1] & 0xC0) != 0x80 or (p[i + 2] & 0xC0) != 0x80:
                return MALFORMED
            if c == 0xE0 and p[i + 1] < 0xA0:  # overlong
                return MALFORMED
            if c == 0xED and p[i + 1] >= 0xA0:  # surrogate
                return MALFORMED
            i += 3
        elif c < 0xF5:
            if n - i < 4 or (p[i + 1] & 0xC0) != 0x80 or (p[i + 2] & 0xC0) != 0x80 or (p[i + 3] & 0xC0) != 0x80:
                return MALFORMED
            if c == 0xF0 and p[i + 1] < 0x90:  # overlong
                return MALFORMED
            if c == 0xF4 and p[i + 1] >= 0x90:  # beyond U+10FFFF
                return MALFORMED
            i += 4
        else:
            return MALFORMED
    return 0


cdef int check_topic(const unsigned char* p, Py_ssize_t n, Py_ssize_t levels_max) noexcept nogil:
    cdef Py_ssize_t i, levels = 1
    if check_text(p, n):
        return MALFORMED
    if n == 0 or n > TOPIC_BYTES_MAX:
        return TOPIC_NAME_INVALID
    for i in range(n):
        if p[i] == 43 or p[i] == 35:  # + and #: [MQTT-3.3.2-2]
            return TOPIC_NAME_INVALID
        if p[i] == 47:
            levels += 1
    return TOPIC_NAME_INVALID if levels > levels_max else 0


def topic_error(bytes topic, Py_ssize_t levels_max):
    """0 if ``topic`` may be published to, else the reason code that says why not."""
    return check_topic(<const unsigned char*>PyBytes_AS_STRING(topic), PyBytes_GET_SIZE(topic), levels_max)


def is_text(bytes data):
    """Whether ``data`` is UTF-8 without NUL or surrogates."""
    return check_text(<const unsigned char*>PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)) == 0


cdef class Parser:

    cpdef void load(self, object buffer, Py_ssize_t have, Py_ssize_t frame_max) except *:
        if PyByteArray_Check(buffer):
            self.p = <const unsigned char*>PyByteArray_AS_STRING(buffer)
        elif PyBytes_Check(buffer):
            self.p = <const unsigned char*>PyBytes_AS_STRING(buffer)
        else:
            raise TypeError("a Parser reads bytes or bytearray")
        if have > len(buffer):
            raise ValueError("a Parser cannot read past its buffer")
        self.buffer = buffer
        self.have = have
        self.frame_max = frame_max
        self.start = self.end = 0

    cpdef int next(self):
        cdef Py_ssize_t k = self.end, length = 0
        cdef int shift = 0
        cdef unsigned char x
        cdef const unsigned char* p = self.p
        self.start = k
        if self.have - k < 2:
            return 0
        k += 1
        while True:
            x = p[k]
            k += 1
            length |= (<Py_ssize_t>(x & 127)) << shift
            if not (x & 128):
                break
            shift += 7
            if shift > 21:  # a fifth byte
                self.error = MALFORMED
                return -1
            if k >= self.have:
                return 0
        if shift and x == 0:  # [MQTT-1.5.5-1]: not the shortest form
            self.error = MALFORMED
            return -1
        if k - self.start + length > self.frame_max:
            self.error = PACKET_TOO_LARGE
            return -1
        self.kind = p[self.start] >> 4
        self.flags = p[self.start] & 15
        if self.have - k < length:
            return 0
        self.body = k
        self.end = k + length
        return 1

    cpdef int parse_publish(self, bint v5):
        cdef const unsigned char* p = self.p
        cdef Py_ssize_t k = self.body, end = self.end, n, length
        cdef int shift
        cdef unsigned char x
        self.qos = (self.flags >> 1) & 3
        self.retain = self.flags & 1
        self.dup = (self.flags >> 3) & 1
        if self.qos == 3 or (self.dup and self.qos == 0):  # [MQTT-3.3.1-4], [MQTT-3.3.1-2]
            return MALFORMED
        if end - k < 2:
            return MALFORMED
        n = (p[k] << 8) | p[k + 1]
        k += 2
        if end - k < n:
            return MALFORMED
        self.topic_at = k
        self.topic_bytes = n
        k += n
        if self.qos:
            if end - k < 2:
                return MALFORMED
            self.packet_id = (p[k] << 8) | p[k + 1]
            k += 2
            if self.packet_id == 0:
                return MALFORMED
        else:
            self.packet_id = 0
        self.alias = 0
        self.alias_at = -1
        self.expiry_at = -1
        self.payload_format = 0
        self.properties_bytes = 0
        if v5:
            if k >= end:
                return MALFORMED
            x = p[k]
            k += 1
            length = x & 127
            shift = 7
            while x & 128:
                if k >= end or shift > 21:
                    return MALFORMED
                x = p[k]
                k += 1
                length |= (<Py_ssize_t>(x & 127)) << shift
                shift += 7
            if shift > 7 and x == 0:
                return MALFORMED
            if end - k < length:
                return MALFORMED
            self.properties_at = k
            self.properties_bytes = length
            k += length
            if length:
                shift = self.parse_properties()
                if shift:
                    return shift
        self.payload_at = k
        if n == 0 and self.alias_at < 0:
            return PROTOCOL_ERROR
        return 0

    cdef int parse_properties(self) noexcept:
        """Check the properties of a client's PUBLISH; 0 or a reason code."""
        cdef const unsigned char* p = self.p
        cdef Py_ssize_t k = self.properties_at, end = self.properties_at + self.properties_bytes, n
        cdef unsigned int seen = 0, bit
        cdef unsigned char x
        cdef int i, shift, late = 0
        while k < end:
            x = p[k]
            k += 1
            if x == 0x26:  # user property: the only one that may repeat
                for i in range(2):
                    if end - k < 2:
                        return MALFORMED
                    n = (p[k] << 8) | p[k + 1]
                    k += 2
                    if end - k < n or check_text(p + k, n):
                        return MALFORMED
                    k += n
                continue
            if x == 0x0B:  # [MQTT-3.3.4-6]: a client never sends subscription identifiers
                n = shift = 0
                while True:
                    if k >= end or shift > 21:
                        return MALFORMED
                    x = p[k]
                    k += 1
                    n |= (<Py_ssize_t>(x & 127)) << shift
                    shift += 7
                    if not (x & 128):
                        break
                if shift > 7 and x == 0:
                    return MALFORMED
                if n == 0:
                    return PROTOCOL_ERROR
                if not late:
                    late = PROTOCOL_ERROR
                continue
            if x == 0x01:
                bit = 1
                if end - k < 1:
                    return MALFORMED
                if p[k] > 1:
                    return PROTOCOL_ERROR
                self.payload_format = p[k]
                k += 1
            elif x == 0x02:
                bit = 2
                if end - k < 4:
                    return MALFORMED
                self.expiry_at = k
                self.expiry = ((<unsigned int>p[k]) << 24) | (p[k + 1] << 16) | (p[k + 2] << 8) | p[k + 3]
                k += 4
            elif x == 0x03 or x == 0x08 or x == 0x09:
                bit = 4 if x == 0x03 else 8 if x == 0x08 else 16
                if end - k < 2:
                    return MALFORMED
                n = (p[k] << 8) | p[k + 1]
                k += 2
                if end - k < n:
                    return MALFORMED
                if x == 0x08:
                    if check_text(p + k, n):
                        return MALFORMED
                    if check_topic(p + k, n, 65536):  # [MQTT-3.3.2-14]
                        late = TOPIC_NAME_INVALID
                elif x == 0x03 and check_text(p + k, n):
                    return MALFORMED
                k += n
            elif x == 0x23:
                bit = 32
                if end - k < 2:
                    return MALFORMED
                self.alias_at = k - 1
                self.alias = (p[k] << 8) | p[k + 1]
                if self.alias == 0:  # [MQTT-3.3.2-8]
                    return TOPIC_ALIAS_INVALID
                k += 2
            else:
                return MALFORMED
            if seen & bit:
                return PROTOCOL_ERROR
            seen |= bit
        return late

    cpdef int parse_ack(self, bint v5):
        cdef const unsigned char* p = self.p
        cdef Py_ssize_t n = self.end - self.body
        if self.flags != (2 if self.kind == 6 else 0):  # [MQTT-3.6.1-1]
            # Only MQTT 3.1 has a DUP flag on PUBREL: the codec knows the version.
            return -1 if self.kind == 6 and self.flags == 10 and not v5 else MALFORMED
        if n < 2 or (n > 2 and not v5):
            return MALFORMED
        self.packet_id = (p[self.body] << 8) | p[self.body + 1]
        if self.packet_id == 0:
            return MALFORMED
        self.reason = p[self.body + 2] if n > 2 else 0
        return 0 if n < 4 and self.reason == 0 else -1

    cpdef bint topic_is(self, bytes topic):
        cdef Py_ssize_t n = PyBytes_GET_SIZE(topic)
        return n == self.topic_bytes and n != 0 and memcmp(PyBytes_AS_STRING(topic), self.p + self.topic_at, n) == 0

    cpdef bytes topic(self):
        return PyBytes_FromStringAndSize(<const char*>self.p + self.topic_at, self.topic_bytes)

    cpdef bytes payload(self):
        return PyBytes_FromStringAndSize(<const char*>self.p + self.payload_at, self.end - self.payload_at)

    cpdef bytes properties(self):
        cdef const char* p = <const char*>self.p
        cdef Py_ssize_t at = self.properties_at, n = self.properties_bytes, cut = self.alias_at
        if n == 0:
            return b""
        if cut < 0:
            return PyBytes_FromStringAndSize(p + at, n)
        return PyBytes_FromStringAndSize(p + at, cut - at) + PyBytes_FromStringAndSize(p + cut + 3, at + n - cut - 3)

    cpdef Py_ssize_t expiry_offset(self):
        if self.expiry_at < 0:
            return -1
        return self.expiry_at - self.properties_at - (3 if 0 <= self.alias_at < self.expiry_at else 0)

    cpdef bytes frame(self):
        return PyBytes_FromStringAndSize(<const char*>self.p + self.start, self.end - self.start)

    cpdef bytes frame_body(self):
        return PyBytes_FromStringAndSize(<const char*>self.p + self.body, self.end - self.body)
