# SPDX-License-Identifier: MIT
# fastattn.h for Cython: `from fastattn.capi cimport fa_attention`; link with get_library().
from libc.stdint cimport int32_t, int64_t


cdef extern from "fastattn.h" nogil:
    enum:
        FA_MAX_LEAD

    ctypedef enum fa_status:
        FA_OK
        FA_NO_MEMORY
        FA_UNSUPPORTED_ISA
        FA_INVALID

    ctypedef enum fa_dtype:
        FA_FLOAT32
        FA_FLOAT64
        FA_BOOL
        FA_FLOAT16
        FA_BFLOAT16
        FA_INT8
        FA_FLOAT8_E4M3
        FA_FLOAT8_E5M2

    ctypedef enum fa_precision:
        FA_HIGHEST
        FA_HIGH
        FA_MEDIUM

    ctypedef struct fa_tensor:
        void *data
        int64_t lead[6]
        int64_t head
        int64_t row
        int64_t column
        int64_t page

    ctypedef struct fa_args:
        size_t size
        fa_dtype dtype
        fa_dtype kv_dtype
        int lead_rank
        int64_t lead_shape[6]
        int64_t q_heads
        int64_t kv_heads
        int64_t queries
        int64_t keys
        int64_t depth
        int64_t value_depth
        fa_tensor q
        fa_tensor k
        fa_tensor v
        fa_tensor out
        fa_tensor mask
        fa_dtype mask_dtype
        void *lse
        fa_tensor k_scale
        fa_tensor v_scale
        int64_t sequences
        const int64_t *cu_q
        const int64_t *cu_k
        const int32_t *block_table
        int64_t table_width
        int64_t page_keys
        int64_t pages
        double scale
        double softcap
        int causal
        int64_t left
        int64_t right
        const int64_t *q_offset
        const int64_t *kv_begin
        const int64_t *kv_end
        const double *alibi
        const double *sinks
        int threads
        const char *isa
        fa_precision precision

    fa_status fa_attention(const fa_args *args)
    fa_status fa_attention_weights(const fa_args *args)
    const char *fa_isa_name(int index)
    const char *fa_isa_missing(int index)
    const char *fa_isa_default()
    int fa_max_threads()
    int fa_has_threads()
