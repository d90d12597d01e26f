/* SPDX-License-Identifier: MIT
 * fastattn: exact attention on CPUs, as a C library. Plain C11, no dependencies.
 *
 *     out = softmax(scale * q k^T + mask) v        lse = log(sum(exp(scores)))
 *
 * Every function may be called from several threads at once. Nothing is written unless FA_OK is
 * returned. The meaning of every option is that of fastattn.attention in Python. Start from
 * `fa_args args = {.size = sizeof args, .left = -1, .right = -1}`: what is 0 is not used, but for
 * `scale`, which has no default: Python's is 1 / sqrt(depth).
 * A batch is one index over all leading axes, or a packed sequence.
 *
 *     fa_args args = {.size = sizeof args, .scale = 0.125, .left = -1, .right = -1};
 *     args.q_heads = 8, args.kv_heads = 2, args.queries = 1, args.keys = 4096;
 *     args.depth = args.value_depth = 64;
 *     args.q = (fa_tensor){.data = q, .head = 64 * 4, .row = 8 * 64 * 4, .column = 4};
 *     ... k, v and out likewise, strides in bytes ...
 *     if (fa_attention(&args) != FA_OK) ...
 *
 * fa_args only ever grows at its end, and `size` says which version a program was compiled with;
 * fa_tensor stays as it is.
 */
#ifndef FASTATTN_H
#define FASTATTN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(FA_BUILD_SHARED) && defined(_WIN32)
#define FA_API __declspec(dllexport)
#elif defined(__GNUC__)
#define FA_API __attribute__((visibility("default")))
#else
#define FA_API
#endif

enum { FA_MAX_LEAD = 6 }; /* leading axes before (heads, sequence, feature) */

typedef enum {
    FA_OK,
    FA_NO_MEMORY,
    FA_UNSUPPORTED_ISA, /* unknown name, or this machine cannot run it */
    FA_INVALID          /* sizes or ranges that make no sense, or of more than 2^56 numbers;
                           pointers that lack; args->size of another version */
} fa_status;

typedef enum {
    FA_FLOAT32,
    FA_FLOAT64,
    FA_BOOL,
    FA_FLOAT16,
    FA_BFLOAT16,
    FA_INT8,
    FA_FLOAT8_E4M3, /* finite, NaN 0x7f: the "fn" kind */
    FA_FLOAT8_E5M2
} fa_dtype;

typedef enum {
    FA_HIGHEST, /* float32-exact */
    FA_HIGH,    /* about 16 bits */
    FA_MEDIUM   /* about 8 bits */
} fa_precision;

/* A tensor (lead..., heads, sequence, feature); strides in bytes, zero and negative allowed. */
typedef struct {
    void *data;
    int64_t lead[FA_MAX_LEAD];
    int64_t head, row, column;
    int64_t page; /* from page to page, with block_table */
} fa_tensor;

typedef struct {
    size_t size;       /* sizeof(fa_args): lets the struct grow */
    fa_dtype dtype;    /* of q and out: float32, float64, float16, bfloat16 */
    fa_dtype kv_dtype; /* of k and v: the same, or narrower; with float64 only float64 */
    int lead_rank;
    int64_t lead_shape[FA_MAX_LEAD];
    int64_t q_heads, kv_heads; /* q_heads a multiple of kv_heads */
    int64_t queries, keys, depth, value_depth;

    fa_tensor q, k, v, out; /* out of fa_attention_weights: (lead..., q_heads, queries, keys) */
    fa_tensor mask;         /* data NULL: none. row is the query axis, column the key axis */
    fa_dtype mask_dtype;    /* FA_BOOL (nonzero = attend) or a float; 16 bits not with float64 */
    void *lse;              /* NULL or (lead..., q_heads, queries), contiguous; float32, float64 */

    /* A key's or value's true value is what is stored times its scale: float32, (lead..., kv_heads,
     * keys), or with block_table (pages, kv_heads, page_keys); column unused; data NULL: 1. */
    fa_tensor k_scale, v_scale;

    /* Packed sequences, lead_rank 0: sequence b has the rows cu_q[b] ... cu_q[b + 1] - 1 of q and
     * out, and those of cu_k of k and v. cu_q NULL: none. cu_k NULL only with block_table.
     * queries, keys: all rows of q and of k. lse is (q_heads, queries). No mask. Positions, and
     * what goes by batch, count from each sequence's own first row. */
    int64_t sequences;
    const int64_t *cu_q, *cu_k;

    /* Pages: key j of batch b is row j % page_keys of page block_table[b * table_width +
     * j / page_keys] of `pages`; k and v then have no leading axes. A batch has table_width *
     * page_keys keys, whatever `keys` says, or fewer by kv_end. block_table NULL: none. */
    const int32_t *block_table;
    int64_t table_width, page_keys, pages;

    double scale, softcap; /* softcap 0: none */
    int causal;
    int64_t left, right; /* window; -1: unbounded */
    /* (batches); NULL: kv_end - queries, 0, keys. q_offset: from -2^53 to 2^53. */
    const int64_t *q_offset, *kv_begin, *kv_end;
    const double *alibi; /* NULL or (batches, q_heads) */
    const double *sinks; /* NULL or (q_heads) */

    int threads;     /* 0: fa_max_threads() */
    const char *isa; /* NULL: FASTATTN_ISA of the environment, or the best there is */

    fa_precision precision; /* the least that float32 is computed with */
} fa_args;

FA_API fa_status fa_attention(const fa_args *args);

/* The whole table of attention weights, float64 for float64 and else float32, its keys next to each
 * other; args->v is not read. */
FA_API fa_status fa_attention_weights(const fa_args *args);

/* Instruction sets, best last: name, or NULL past the end; why it cannot be used, or NULL. */
FA_API const char *fa_isa_name(int index);
FA_API const char *fa_isa_missing(int index);

/* What fa_attention would use with isa = NULL; NULL when FASTATTN_ISA cannot be used. */
FA_API const char *fa_isa_default(void);

/* The CPUs this process may use, or OMP_NUM_THREADS if that is less; 1 when built without threads.
 */
FA_API int fa_max_threads(void);
FA_API int fa_has_threads(void);

#ifdef __cplusplus
}
#endif

#endif
