cimport cython


cdef unsigned long long _FACTOR, _BITS
cdef object _pack


@cython.locals(checksum="unsigned long long")
cpdef unsigned int hash_level(bytes level) except? 0
cpdef bytes level_key(bytes level)


cdef class BitField:
    cdef unsigned long long _limit
    cdef list _tables
    cdef readonly object ones

    @cython.locals(value="unsigned long long", table=list)
    cpdef object place(self, bytes level)


cdef class MaskQuery:
    cdef readonly bytes pattern, mask, static
    cdef readonly bint is_prefix

    @cython.locals(width=Py_ssize_t)
    cpdef bint matches(self, bytes index) except -1
    cpdef bytes first(self)
    @cython.locals(pattern=bytes, mask=bytes, start=bytes, i=Py_ssize_t, width=Py_ssize_t, at=bytearray, low=int, byte=int)
    cpdef bytes ratchet(self, bytes index)
    @cython.locals(pattern=bytes, mask=bytes, i=Py_ssize_t, width=Py_ssize_t)
    cdef Py_ssize_t _agreeing(self, bytes index) except -1


cdef class IndexCache:
    cdef object _compute
    cdef dict _fresh, _aged
    cdef Py_ssize_t _half

    cpdef bytes index(self, bytes topic)
