cimport cython


@cython.final
cdef class Subscription:
    cdef readonly object flow, group
    cdef readonly bytes topic_filter, identifiers
    cdef readonly int qos
    cdef readonly bint no_local, retain_as_published
    cdef public Subscription echo, prompt
    cdef public bint is_behind
    cdef readonly bint is_durable, passes_frames
