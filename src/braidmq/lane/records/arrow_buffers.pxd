from libc.stdint cimport int32_t, int64_t, uint8_t


cdef class Block:
    cdef uint8_t* data
    cdef Py_ssize_t size, capacity

    cdef int grow(self, Py_ssize_t more) except -1
    cdef int reserve(self, Py_ssize_t more) except -1
    cdef int put(self, const uint8_t* p, Py_ssize_t size) except -1
    cdef int put_int32(self, int32_t number) except -1
    cdef int put_int64(self, int64_t number) except -1
    cdef int repeat_int32(self, int32_t number, Py_ssize_t count) except -1
    cdef int fill(self, int value, Py_ssize_t size) except -1
    cdef int put_bit(self, Py_ssize_t place, bint is_set) except -1
    cdef Block fresh(self)


cdef class Column:
    cdef Py_ssize_t rows, nulls
    cdef Block validity  # None as long as there are no nulls

    cdef int mark(self) except -1
    cdef int mark_nulls(self, Py_ssize_t rows) except -1
    cdef tuple begin_anew(self, list values)
    cpdef tuple take(self, Py_ssize_t rows)


cdef class Flags(Column):
    cdef Block bits

    cdef int add(self, Py_ssize_t row, bint is_set) except -1


cdef class Numbers(Column):
    cdef Block values
    cdef int width

    cdef int add(self, Py_ssize_t row, int64_t number) except -1
    cdef int pad(self, Py_ssize_t rows) except -1


cdef class Variable(Column):
    cdef Block offsets, data
    cdef bint is_text

    cdef int add(self, Py_ssize_t row, const uint8_t* p, Py_ssize_t size) except -1
    cdef int pad(self, Py_ssize_t rows) except -1
    cdef int check(self) except -1


cdef class Pairs(Column):
    cdef Block ends
    cdef Variable names, values

    cdef int add(self, const uint8_t* name, Py_ssize_t name_size, const uint8_t* value, Py_ssize_t value_size) except -1
    cdef int close(self, Py_ssize_t row, Py_ssize_t added) except -1
    cdef int pad(self, Py_ssize_t rows, Py_ssize_t end) except -1
