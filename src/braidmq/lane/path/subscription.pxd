cimport cython

from braidmq.lane.path.message cimport Message


@cython.final
cdef class Subscription:
    cdef readonly object flow, group
    cdef readonly bytes topic_filter, identifiers
    cdef readonly int qos
    cdef readonly bint no_local, retain_as_published
    cdef public Subscription echo, prompt
    cdef public bint is_behind
    cdef readonly bint is_durable, passes_frames

    cpdef int qos_for(self, Message message) noexcept
    cpdef bint retain_for(self, Message message) noexcept
    cpdef Subscription for_publisher(self, str client_id)
    cpdef Subscription live_for(self, Message message)


@cython.locals(merged=Subscription)
cpdef Subscription merge_two(Subscription first, Subscription second)
@cython.locals(merged=Subscription, subscription=Subscription)
cpdef Subscription merge(list subscriptions)
cdef Subscription _echo(Subscription subscription)
cdef Subscription _prompt(Subscription subscription)
