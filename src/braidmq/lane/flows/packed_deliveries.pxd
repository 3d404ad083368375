cimport cython

from braidmq.lane.flows.delivery cimport Delivery


@cython.locals(delivery=Delivery, packed=bytearray, flags=int)
cpdef bytes pack_deliveries(dict inflight)
@cython.locals(delivery=Delivery, found=list)
cpdef list unpack_deliveries(bytes packed)
