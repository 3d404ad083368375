cdef class Counters:
    cdef public long long bytes_received, bytes_sent
    cdef public long long messages_received, delivered, acked, stray_acks, publishers_held
    cdef public long long publish_qos0_received, publish_qos1_received, publish_qos2_received
    cdef public long long publish_qos0_sent, publish_qos1_sent, publish_qos2_sent
    cdef public long long puback_received, pubrec_received, pubrel_received, pubcomp_received
    cdef public long long puback_sent, pubrec_sent, pubrel_sent, pubcomp_sent, pingreq_received
    cdef public long long dropped_absent, dropped_expired, dropped_no_local, dropped_no_subscribers, dropped_not_authorized, dropped_peer_full
    cdef public long long dropped_memory_full, dropped_not_stored
    cdef public long long dropped_outbox_full, dropped_queue_full, dropped_session_ended, dropped_too_large, inflight_lost


cdef class State:
    cdef readonly Counters counters
    cdef public double now
    cdef public list dirty, late, marks, changed, unready, deferring
    cdef public long long turn
    cdef public bint turn_is_open
    cdef public object congested, make_room, on_deferring, on_drop, on_pressed, on_retained, on_turn, on_unready
    cdef public dict heavy
    cdef public bint is_pressed
    cdef public long long held_bytes, held_bytes_max, unread_bytes, unread_bytes_max
    cdef public Py_ssize_t outbox_bytes_max, work, work_max, large_work, large_work_max
    cdef public long long queued_messages, queued_bytes, unshown
    cdef public object encoded
    cdef public bytes encoded_value
    cdef public long long part_number, part_timestamp
    cdef public int part_shard, sender_shard
    cdef public bint is_deferring
    cdef public long long deferred_bytes

    cpdef list offered(self, long long seen)

    cpdef bint has_room_for(self, object queue, Py_ssize_t cost) except -1
    cpdef void drop(self, str reason, str client_id, bytes topic) except *
    cpdef void drop_expired(self, str client_id, bytes topic) except *
