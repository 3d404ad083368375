cdef class Verdicts:
    cdef readonly dict known
    cdef Py_ssize_t _bytes

    cpdef void put(self, bytes topic, bint verdict) except *
