cdef class Counters:
    cdef public long long bytes_received, bytes_sent
    cdef public long long messages_received, delivered, acked, stray_acks, publishers_held
    cdef public long long publish_qos0_received, publish_qos1_received, publish_qos2_received
    cdef public long long publish_qos0_sent, publish_qos1_sent, publish_qos2_sent
    cdef public long long puback_received, pubrec_received, pubrel_received, pubcomp_received
    cdef public long long puback_sent, pubrec_sent, pubrel_sent, pubcomp_sent, pingreq_received
    cdef public long long dropped_absent, dropped_expired, dropped_no_local, dropped_no_subscribers, dropped_not_authorized
    cdef public long long dropped_not_stored
    cdef public long long dropped_outbox_full, dropped_queue_full, dropped_session_ended, dropped_too_large, inflight_lost


cdef class State:
    cdef readonly Counters counters
    cdef public double now, wall_offset
    cdef public list dirty, late, marks, changed, unready
    cdef public long long turn
    cdef public bint turn_is_open
    cdef public object congested, on_drop, on_turn, on_unready
    cdef public Py_ssize_t outbox_bytes_max, work, work_max
    cdef public long long queued_messages, queued_bytes

    cpdef void drop(self, str reason, str client_id, bytes topic) except *
