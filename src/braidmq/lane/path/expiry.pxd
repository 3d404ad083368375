cdef double _LEAST_S
cdef long long _NEVER, _LONGEST_S

cpdef double wall_offset() except? -1
cpdef long long to_wall(double expires_at, double offset) except -1
cpdef double from_wall(long long expires_us, double offset) except? -1
cpdef long long seconds_left(double expires_at) except? -2
