# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Columns that grow row by row, in the memory layout of Arrow.

The compiled form; ``arrow_buffers.py`` is its plain twin and has the contract of everything here. Blocks of memory are passed on
without copying: they support the buffer protocol, and live as long as Arrow needs them.
"""

from cpython.buffer cimport PyBuffer_FillInfo
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy, memset

from braidmq.base.errors import Corruption

cdef enum:
    BLOCK_BYTES_MIN = 256
    # A block starts with the final size of its column's previous block, up to this.
    HINT_BYTES_MAX = 8388608

# Arrow's offsets have 31 bits. Callers stop long before.
cdef Py_ssize_t BLOCK_BYTES_MAX = 0x7FFFFFFF


cdef class Block:
    """A growing buffer, which Arrow later reads in place."""

    def __cinit__(self, Py_ssize_t capacity=0):
        self.capacity = max(capacity, <Py_ssize_t>BLOCK_BYTES_MIN)
        self.data = <uint8_t*>malloc(self.capacity)
        if self.data == NULL:
            raise MemoryError

    def __dealloc__(self):
        free(self.data)

    def __getbuffer__(self, Py_buffer* view, int flags):
        PyBuffer_FillInfo(view, self, self.data, self.size, 1, flags)

    def __len__(self):
        return self.size

    cdef int grow(self, Py_ssize_t more) except -1:
        cdef Py_ssize_t capacity = max(self.capacity * 2, self.size + more)
        cdef uint8_t* data
        if self.size + more > BLOCK_BYTES_MAX:
            raise MemoryError("a column exceeds the range of Arrow's offsets")
        data = <uint8_t*>realloc(self.data, capacity)
        if data == NULL:
            raise MemoryError
        self.data = data
        self.capacity = capacity
        return 0

    cdef int reserve(self, Py_ssize_t more) except -1:
        if self.size + more > self.capacity:
            self.grow(more)
        return 0

    cdef int put(self, const uint8_t* p, Py_ssize_t size) except -1:
        self.reserve(size)
        memcpy(self.data + self.size, p, size)
        self.size += size
        return 0

    cdef int put_int32(self, int32_t number) except -1:
        self.reserve(4)
        (<int32_t*>(self.data + self.size))[0] = number
        self.size += 4
        return 0

    cdef int put_int64(self, int64_t number) except -1:
        self.reserve(8)
        (<int64_t*>(self.data + self.size))[0] = number
        self.size += 8
        return 0

    cdef int repeat_int32(self, int32_t number, Py_ssize_t count) except -1:
        cdef Py_ssize_t place
        self.reserve(count * 4)
        for place in range(count):
            (<int32_t*>(self.data + self.size))[place] = number
        self.size += count * 4
        return 0

    cdef int fill(self, int value, Py_ssize_t size) except -1:
        self.reserve(size)
        memset(self.data + self.size, value, size)
        self.size += size
        return 0

    cdef int put_bit(self, Py_ssize_t place, bint is_set) except -1:
        """Set the next bit; those before it are already set."""
        if place & 7 == 0:
            self.reserve(1)
            self.data[self.size] = 0
            self.size += 1
        if is_set:
            self.data[place >> 3] |= <uint8_t>(1 << (place & 7))
        return 0

    cdef Block fresh(self):
        """An empty block with the capacity for as much as this one holds."""
        return Block(min(self.size + self.size // 8, <Py_ssize_t>HINT_BYTES_MAX))


cdef class Column:
    """Rows, and which of them are null; `validity` costs nothing as long as there are no nulls."""

    cdef int mark(self) except -1:
        """Add a row that has a value."""
        if self.validity is not None:
            self.validity.put_bit(self.rows, True)
        self.rows += 1
        return 0

    cdef int mark_nulls(self, Py_ssize_t rows) except -1:
        """Fill up with nulls to this many rows."""
        if self.validity is None:
            self.validity = Block((rows + 7) // 8)
            self.validity.fill(0xFF, (self.rows + 7) // 8)
            if self.rows & 7:
                self.validity.data[self.validity.size - 1] = <uint8_t>((1 << (self.rows & 7)) - 1)
        # The rest of the last byte is already 0.
        self.validity.fill(0, (rows + 7) // 8 - self.validity.size)
        self.nulls += rows - self.rows
        self.rows = rows
        return 0

    cdef tuple begin_anew(self, list values):
        """The result of `take`."""
        taken = self.nulls, [self.validity, *values]
        self.rows = self.nulls = 0
        self.validity = None
        return taken

    cpdef tuple take(self, Py_ssize_t rows):
        """Return this many rows, as the number of nulls and the buffers, and start again empty."""
        raise NotImplementedError


cdef class Flags(Column):
    """Bits without nulls."""

    def __cinit__(self):
        self.bits = Block()

    cdef int add(self, Py_ssize_t row, bint is_set) except -1:
        return self.bits.put_bit(row, is_set)

    def append(self, Py_ssize_t row, bint value):
        self.add(row, value)

    cpdef tuple take(self, Py_ssize_t rows):
        bits, self.bits = self.bits, self.bits.fresh()
        return self.begin_anew([bits])


cdef class Numbers(Column):
    """Numbers of 4 or 8 bytes; skipped rows are null."""

    def __cinit__(self, int width):
        self.width = width
        self.values = Block()

    cdef int add(self, Py_ssize_t row, int64_t number) except -1:
        if self.rows < row:
            self.pad(row)
        self.mark()
        return self.values.put_int64(number) if self.width == 8 else self.values.put_int32(<int32_t>number)

    def append(self, Py_ssize_t row, int64_t value):
        self.add(row, value)

    cdef int pad(self, Py_ssize_t rows) except -1:
        if self.rows < rows:
            self.values.fill(0, (rows - self.rows) * self.width)
            self.mark_nulls(rows)
        return 0

    cpdef tuple take(self, Py_ssize_t rows):
        self.pad(rows)
        values, self.values = self.values, self.values.fresh()
        return self.begin_anew([values])


cdef class Variable(Column):
    """Text or binary values; skipped rows are null."""

    def __cinit__(self, bint is_text):
        self.is_text = is_text
        self.offsets = Block()
        self.data = Block()
        self.offsets.put_int32(0)

    cdef int add(self, Py_ssize_t row, const uint8_t* p, Py_ssize_t size) except -1:
        if self.rows < row:
            self.pad(row)
        self.mark()
        self.data.put(p, size)
        return self.offsets.put_int32(<int32_t>self.data.size)

    def append(self, Py_ssize_t row, bytes value not None):
        self.add(row, <const uint8_t*>PyBytes_AS_STRING(value), PyBytes_GET_SIZE(value))

    cdef int pad(self, Py_ssize_t rows) except -1:
        if self.rows < rows:
            self.offsets.repeat_int32(<int32_t>self.data.size, rows - self.rows)
            self.mark_nulls(rows)
        return 0

    cdef int check(self) except -1:
        """Raise Corruption unless every row is UTF-8: the whole must be, and every row must begin with a character."""
        cdef const uint8_t* p = self.data.data
        cdef const int32_t* begins = <const int32_t*>self.offsets.data
        cdef Py_ssize_t place, size = self.data.size
        cdef uint8_t high = 0
        for place in range(size):
            high |= p[place]
        if high < 0x80:
            return 0
        try:
            PyBytes_FromStringAndSize(<const char*>p, size).decode()
        except UnicodeDecodeError:
            raise Corruption("a text in a record is not UTF-8") from None
        for place in range(self.rows):
            if begins[place] < size and p[begins[place]] & 0xC0 == 0x80:
                raise Corruption("a text in a record is not UTF-8")
        return 0

    cpdef tuple take(self, Py_ssize_t rows):
        self.pad(rows)
        if self.is_text:
            self.check()
        offsets, self.offsets = self.offsets, self.offsets.fresh()
        data, self.data = self.data, self.data.fresh()
        self.offsets.put_int32(0)
        return self.begin_anew([offsets, data])


cdef class Pairs(Column):
    """Lists of pairs of text; skipped rows are null."""

    def __cinit__(self):
        self.ends = Block()
        self.ends.put_int32(0)
        self.names = Variable(True)
        self.values = Variable(True)

    cdef int add(self, const uint8_t* name, Py_ssize_t name_size, const uint8_t* value, Py_ssize_t value_size) except -1:
        """Add a pair to the row that `close` will end."""
        self.names.add(self.names.rows, name, name_size)
        return self.values.add(self.values.rows, value, value_size)

    cdef int close(self, Py_ssize_t row, Py_ssize_t added) except -1:
        self.pad(row, self.names.rows - added)
        self.mark()
        return self.ends.put_int32(<int32_t>self.names.rows)

    def append(self, Py_ssize_t row, list value not None):
        cdef bytes name, text
        for name, text in value:
            self.names.append(self.names.rows, name)
            self.values.append(self.values.rows, text)
        self.close(row, len(value))

    cdef int pad(self, Py_ssize_t rows, Py_ssize_t end) except -1:
        if self.rows < rows:
            self.ends.repeat_int32(<int32_t>end, rows - self.rows)
            self.mark_nulls(rows)
        return 0

    cpdef tuple take(self, Py_ssize_t rows):
        cdef Py_ssize_t count = self.names.rows
        self.pad(rows, count)
        ends, self.ends = self.ends, self.ends.fresh()
        self.ends.put_int32(0)
        return self.begin_anew([ends, *self.names.take(count)[1][1:], *self.values.take(count)[1][1:]])
