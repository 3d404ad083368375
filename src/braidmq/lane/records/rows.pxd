cdef class Rows:
    cdef object _next_run, _run
    cdef tuple _last
