/* SPDX-License-Identifier: MIT
 * fastattn: exact attention on CPUs, as a C library. Plain C11, no dependencies.
 *
 *     out = softmax(scale * q k^T + mask) v        lse = log(sum(exp(scores)))
 *
 * Every function may be called from several threads at once. Nothing is written unless FA_OK is
 * returned. The meaning of every option is that of fastattn.attention in Python.
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
    FA_INVALID          /* sizes or ranges that make no sense; args->size of another version */
} fa_status;

typedef enum { FA_FLOAT32, FA_FLOAT64, FA_BOOL } fa_dtype;

/* A tensor (lead..., heads, sequence, feature); strides in bytes, zero and negative allowed. */
typedef struct {
    void *data;
    int64_t lead[FA_MAX_LEAD];
    int64_t head, row, column;
} fa_tensor;

typedef struct {
    size_t size; /* sizeof(fa_args): lets the struct grow */
    fa_dtype dtype;
    int lead_rank;
    int64_t lead_shape[FA_MAX_LEAD];
    int64_t q_heads, kv_heads; /* q_heads a multiple of kv_heads */
    int64_t queries, keys, depth, value_depth;

    fa_tensor q, k, v, out; /* out of fa_attention_weights: (lead..., q_heads, queries, keys) */
    fa_tensor mask;         /* data NULL: none. row is the query axis, column the key axis */
    fa_dtype mask_dtype;    /* FA_BOOL (nonzero = attend), FA_FLOAT32, FA_FLOAT64 */
    void *lse;              /* NULL or (lead..., q_heads, queries), contiguous, of dtype */

    double scale, softcap; /* softcap 0: none */
    int causal;
    int64_t left, right;                         /* window; -1: unbounded */
    const int64_t *q_offset, *kv_begin, *kv_end; /* (batches); NULL: keys - queries, 0, keys */
    const double *alibi;                         /* NULL or (batches, q_heads) */
    const double *sinks;                         /* NULL or (q_heads) */

    int threads;     /* 0: fa_max_threads() */
    const char *isa; /* NULL: FASTATTN_ISA of the environment, or the best there is */
} fa_args;

FA_API fa_status fa_attention(const fa_args *args);

/* The whole table of attention weights; args->v is not read. */
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
