cimport cython


cdef class TopicAliases:
    cdef readonly dict topics
    cdef Py_ssize_t _left

    @cython.locals(before=bytes, left=Py_ssize_t)
    cpdef bint put(self, int alias, bytes topic) except -1
