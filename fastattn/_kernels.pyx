# cython: language_level=3
# cython: freethreading_compatible=True
# SPDX-License-Identifier: MIT
"""Private: the kernel table, entry by entry, for tests and benches."""

from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memset

import numpy as np

from fastattn import _aligned, _core


cdef extern from "kernels.h":
    enum:
        FA_KEY_PADDING
        FA_ROWS_AHEAD

    ctypedef enum fa_mask_type:
        FA_MASK_NONE, FA_MASK_BOOL, FA_MASK_FLOAT32, FA_MASK_FLOAT64, FA_MASK_HALF, FA_MASK_BFLOAT

    ctypedef enum fa_storage:
        FA_REAL, FA_HALF, FA_BFLOAT, FA_CHAR, FA_E4M3, FA_E5M2

    ctypedef struct fa_tile:
        int vectors, thin, spread, fresh
        int64_t depth, value_depth
        void *q
        void *o
        void *m
        void *l
        void *s
        void *spare

    ctypedef struct fa_modifiers:
        int keys_before
        double cap
        const void *slope
        const void *position
        const void *begin
        const void *end
        fa_mask_type mask
        int64_t mask_stride
        const char *const *mask_rows

    ctypedef struct fa_block:
        int keys, ahead_element, from_memory
        const void *const *k
        const void *const *v
        const void *const *k_ahead
        const void *const *v_ahead
        fa_storage storage
        const fa_modifiers *modifiers

    enum: FA_SPLITS
    ctypedef struct fa_matrix:
        int pieces, max_vectors, key_block
        double (*product_loop)(int64_t) noexcept nogil

    ctypedef struct fa_unit:
        const fa_matrix *wide
        const fa_matrix *const *thin

    ctypedef struct fa_kernels:
        int real_size, lanes, max_vectors, key_block, thin_rows
        int (*arrange)(int, fa_storage, int *) noexcept nogil
        void (*pack)(fa_tile *, fa_storage, const void *const *, int, double) noexcept nogil
        void (*begin)(fa_tile *, const void *) noexcept nogil
        void (*merge)(fa_tile *, const fa_tile *) noexcept nogil
        void (*widen)(fa_storage, const void *const *, int, int64_t, const float *, void *) noexcept nogil
        void (*narrow)(fa_storage, const void *, int64_t, void *) noexcept nogil
        double (*greatest_square)(fa_storage, const void *const *, int, int64_t, const float *) noexcept nogil
        void (*update)(fa_tile *, const fa_block *) noexcept nogil
        void (*finish)(const fa_tile *, fa_storage, void *const *, int) noexcept nogil
        void (*weigh)(fa_tile *, const fa_block *, void *const *, int) noexcept nogil
        void (*scores)(fa_tile *, const fa_block *) noexcept nogil
        void (*modify)(fa_tile *, const fa_block *) noexcept nogil
        void (*softmax)(fa_tile *, const fa_block *) noexcept nogil
        void (*output)(fa_tile *, const fa_block *) noexcept nogil
        void (*exp2)(const void *, void *, int64_t) noexcept nogil
        void (*tanh)(const void *, void *, int64_t) noexcept nogil
        double (*fma_loop)(int64_t) noexcept nogil
        double (*read_loop)(const void *, int64_t) noexcept nogil


cdef extern from "schedule.h":
    ctypedef struct fa_positions:
        int64_t offset, begin, end, left, right
    ctypedef struct fa_range:
        int64_t begin, end
    ctypedef struct fa_span:
        int64_t begin, end, full_begin, full_end
    ctypedef struct fa_tiling:
        int64_t tiles
    ctypedef struct fa_tile_rows:
        int64_t row_begin
        int rows, vectors
    fa_range fa_allowed(const fa_positions *, int64_t)
    fa_span fa_span_of(const fa_positions *, int64_t, int64_t)
    void fa_span_limit(fa_span *, const fa_positions *, int64_t, int64_t, int64_t)
    fa_tiling fa_tile_up(int64_t, int, int, int64_t, int)
    fa_tile_rows fa_tile_at(const fa_tiling *, int64_t)


STAGES = ("update", "scores", "modify", "softmax", "output")
KERNELS = (
    "pack", "begin", *STAGES, "merge", "finish", "weigh", "widen", "narrow",
    "greatest_square", "exp2", "tanh", "fma_loop", "read_loop",
)
STORAGES = {
    "real": FA_REAL, "float16": FA_HALF, "bfloat16": FA_BFLOAT, "int8": FA_CHAR,
    "float8_e4m3fn": FA_E4M3, "float8_e5m2": FA_E5M2,
}


cdef const fa_kernels *find(isa, dtype) except NULL:
    cdef uintptr_t at = _core.kernels_at(isa, np.dtype(dtype).name)[0]
    if not at:
        raise ValueError(f"isa: {isa!r} cannot be used on this machine")
    return <const fa_kernels *>at


cdef const fa_unit *find_unit(isa) except NULL:
    find(isa, np.float32)
    return <const fa_unit *><uintptr_t>_core.kernels_at(isa, "float32")[1]


def table():
    """(kernel, isa, dtype) of everything that can run here."""
    names = [name for name, missing in _core.isa_table().items() if missing is None]
    dtypes = ("float32", "float64")
    return [(kernel, name, dtype) for name in names for dtype in dtypes for kernel in KERNELS]


def tile(isa, dtype):
    """Tile sizes of an instruction set."""
    cdef const fa_kernels *kernels = find(isa, dtype)
    return {
        "lanes": kernels.lanes,
        "tile_vectors": kernels.max_vectors,
        "key_block": kernels.key_block,
        "key_padding": FA_KEY_PADDING,
        "thin_rows": kernels.thin_rows,
    }


include "_kernels_limits.pxi"


cdef uintptr_t address(array):
    return 0 if array is None else array.ctypes.data


def aligned(shape, dtype, fill=np.nan):
    """An array on a cache-line boundary, filled with what must never be used."""
    array = _aligned.zeros(shape, dtype)
    array[...] = fill
    return array


cdef class Tile:
    """A query tile with its state, on which single table entries can be run.

    q: (rows, depth) contiguous; arrays q_packed, s, o, m, l are laid out as kernels.h says. A thin
    tile has `thin` rows.
    """

    cdef const fa_kernels *kernels
    cdef fa_tile state
    cdef readonly object isa, dtype, q_packed, s, o, m, l, spare
    cdef readonly int vectors, width, rows, thin

    def __init__(self, isa, dtype, int vectors, int64_t depth, int64_t value_depth, int thin=0):
        self.kernels = find(isa, dtype)
        cdef int lanes = self.kernels.lanes
        if thin and (vectors != 1 or thin > lanes):
            raise ValueError(f"thin: expected at most {lanes} rows in 1 vector, got {thin}")
        if not 1 <= vectors <= self.kernels.max_vectors:
            raise ValueError(f"vectors: expected 1 to {self.kernels.max_vectors}, got {vectors}")
        self.isa, self.dtype = isa, np.dtype(dtype)
        self.vectors, self.thin = vectors, thin
        self.width = vectors * self.kernels.lanes
        shapes = [(n, self.width) for n in (depth, value_depth)]
        if thin:
            self.state.thin = self.kernels.arrange(thin, FA_REAL, &self.state.spread)
            shapes = [(self.state.thin, -(-n // lanes) * lanes) for n in (depth, value_depth)]
        self.q_packed = aligned(shapes[0], dtype)
        self.s = aligned((self.kernels.key_block + FA_KEY_PADDING, self.width), dtype)
        self.o, self.spare = [aligned(shapes[1], dtype) for _ in range(2)]
        self.m, self.l = [aligned((self.width,), dtype) for _ in range(2)]
        self.state.vectors = vectors
        self.state.depth, self.state.value_depth = depth, value_depth
        self.state.q = <void *>address(self.q_packed)
        self.state.s = <void *>address(self.s)
        self.state.spare = <void *>address(self.spare)
        self.state.o = <void *>address(self.o)
        self.state.m = <void *>address(self.m)
        self.state.l = <void *>address(self.l)

    @property
    def fresh(self):
        return bool(self.state.fresh)

    @fresh.setter
    def fresh(self, value):
        self.state.fresh = value

    def pack(self, q, double factor=1.0, sinks=None, storage="real", int64_t repeats=1):
        """Transpose rows of `storage` in; sinks (width,) in log2 on a cache line, or None."""
        rows = pointers(q, len(q), 0)
        cdef const void *const *at = <const void *const *><uintptr_t>address(rows)
        cdef fa_storage kind = STORAGES[storage]
        cdef int64_t turn
        self.rows = len(q)
        for turn in range(repeats):
            self.kernels.pack(&self.state, kind, at, self.rows, factor)
        self.begin(sinks)

    def begin(self, sinks=None, int64_t repeats=1):
        """The state before the first key."""
        cdef const void *at = <const void *><uintptr_t>address(sinks)
        cdef int64_t turn
        for turn in range(repeats):
            self.kernels.begin(&self.state, at)

    def merge(self, Tile other, int64_t repeats=1):
        """Take in the state over other keys of the same rows."""
        cdef int64_t turn
        for turn in range(repeats):
            self.kernels.merge(&self.state, &other.state)

    def finish(self, out, int64_t repeats=1):
        """Write o / l to the rows of out."""
        rows = pointers(out, len(out), 0)
        cdef void *const *at = <void *const *><uintptr_t>address(rows)
        cdef int64_t turn, count = len(out)
        for turn in range(repeats):
            self.kernels.finish(&self.state, FA_REAL, at, count)

    def run(self, kernel, k, v=None, *, modifiers=None, weights=None, int64_t repeats=1):
        """One of STAGES, or weigh into `weights`, on a block of keys k (keys, depth), v."""
        cdef fa_block block
        cdef fa_modifiers c_modifiers
        cdef void (*stage)(fa_tile *, const fa_block *) noexcept nogil
        cdef void *const *target
        cdef int64_t turn, count
        memset(&block, 0, sizeof(block))
        block.keys = len(k)
        k_rows = pointers(k, len(k), FA_ROWS_AHEAD + FA_KEY_PADDING)
        v_rows = pointers(v, len(k), FA_ROWS_AHEAD + FA_KEY_PADDING) if v is not None else None
        block.k = <const void *const *><uintptr_t>address(k_rows)
        block.v = <const void *const *><uintptr_t>address(v_rows)
        block.k_ahead = block.k + FA_ROWS_AHEAD
        block.v_ahead = block.v + FA_ROWS_AHEAD if v is not None else NULL
        block.storage, block.from_memory = FA_REAL, v is not None
        block.ahead_element = self.kernels.real_size
        if modifiers is not None:
            modifiers = dict(modifiers)
            mask_rows = fill_modifiers(&c_modifiers, modifiers, self.width)
            block.modifiers = &c_modifiers
        if kernel == "weigh":
            rows = pointers(weights, len(weights), 0)
            target, count = <void *const *><uintptr_t>address(rows), len(weights)
            for turn in range(repeats):
                self.kernels.weigh(&self.state, &block, target, count)
            return
        if kernel == "update":
            stage = self.kernels.update
        elif kernel == "scores":
            stage = self.kernels.scores
        elif kernel == "modify":
            stage = self.kernels.modify
        elif kernel == "softmax":
            stage = self.kernels.softmax
        elif kernel == "output":
            stage = self.kernels.output
        else:
            raise ValueError(f"kernel: expected one of {STAGES}, got {kernel!r}")
        with nogil:
            for turn in range(repeats):
                stage(&self.state, &block)


cdef pointers(array, int count, int padding):
    """Addresses of the first `count` rows; the last one again for the padding."""
    step = array.strides[0]
    rows = np.arange(count + padding).clip(max=count - 1) * step + array.ctypes.data
    return rows.astype(np.uintp)


cdef fill_modifiers(fa_modifiers *target, options, int width):
    mask = options.get("mask")
    target.keys_before = options.get("keys_before", 0)
    target.cap = options.get("cap", 0.0)
    target.slope = <const void *><uintptr_t>address(options.get("slope"))
    target.position = <const void *><uintptr_t>address(options.get("position"))
    target.begin = <const void *><uintptr_t>address(options.get("begin"))
    target.end = <const void *><uintptr_t>address(options.get("end"))
    target.mask, target.mask_stride, target.mask_rows = FA_MASK_NONE, 0, NULL
    if mask is None:
        return None
    target.mask = {"b": FA_MASK_BOOL}.get(mask.dtype.kind, {4: FA_MASK_FLOAT32}.get(
        mask.dtype.itemsize, FA_MASK_FLOAT64))
    target.mask_stride = mask.strides[1]
    options["rows"] = pointers(mask, width, 0)
    target.mask_rows = <const char *const *><uintptr_t>address(options["rows"])
    return options["rows"]


include "_kernels_rows.pxi"


def matrix_pieces(isa):
    """In how many pieces of bfloat16 an instruction set multiplies numbers in tiles; maybe none."""
    cdef const fa_matrix *wide = find_unit(isa).wide
    if wide == NULL:
        return ()
    return tuple(sorted({wide[n].pieces for n in range(FA_SPLITS)} - {0}))


def thin_storages(isa):
    """What K and V may be stored as for few rows of bfloat16 to have kernels of their own."""
    cdef const fa_matrix *const *thin = find_unit(isa).thin
    if thin == NULL:
        return ()
    return tuple(name for name, kind in STORAGES.items() if thin[<int>kind] != NULL)


def allowed(int64_t query, *, offset=0, begin=0, end=0, left=-1, right=-1):
    """schedule.h: the keys that a query may see."""
    cdef fa_positions positions = fa_positions(offset, begin, end, left, right)
    result = fa_allowed(&positions, query)
    return result.begin, result.end


def span(int64_t query_begin, int64_t query_end, reach=None, *, offset=0, begin=0, end=0, left=-1,
         right=-1):
    """schedule.h: the keys that any, and that all of these queries may see, or those in reach."""
    cdef fa_positions positions = fa_positions(offset, begin, end, left, right)
    result = fa_span_of(&positions, query_begin, query_end)
    if reach is not None:
        fa_span_limit(&result, &positions, query_begin, query_end, reach)
    return result.begin, result.end, result.full_begin, result.full_end


def tiling(int64_t rows, int lanes, int max_vectors, int64_t group_rows=0, int apart=0):
    """schedule.h: [(row_begin, rows, vectors)] of every tile."""
    plan = fa_tile_up(rows, lanes, max_vectors, group_rows, apart)
    tiles = []
    for index in range(plan.tiles):
        at = fa_tile_at(&plan, index)
        tiles.append((at.row_begin, at.rows, at.vectors))
    return tiles
