cimport cython

from braidmq.lane.path.message cimport Message
from braidmq.lane.routing.subscription cimport Subscription


cpdef int copy_qos(Message message, Subscription subscription) noexcept
cpdef bint copy_retain(Message message, Subscription subscription) noexcept
cpdef Subscription for_publisher(Subscription subscription, str client_id)
cpdef Subscription live_for(Subscription subscription, Message message)

@cython.locals(merged=Subscription)
cpdef Subscription merge_two(Subscription first, Subscription second)
@cython.locals(merged=Subscription, subscription=Subscription)
cpdef Subscription merge(list subscriptions)
cdef Subscription _echo(Subscription subscription)
cdef Subscription _prompt(Subscription subscription)
