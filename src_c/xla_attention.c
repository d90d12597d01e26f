/* SPDX-License-Identifier: MIT
 * The handler behind fastattn.jax: a call frame of XLA -> fa_args -> fa_attention.
 *
 * Arguments   q (lead..., queries, heads, depth), k (lead..., keys, kv_heads, depth),
 *             v (lead..., keys, kv_heads, value_depth), and, where the bits of the attribute
 *             "optional" say so, mask (lead..., heads, queries, keys), query lengths (lead...) and
 *             key lengths (lead...) of int32. An axis of one element repeats, as jax.vmap makes it.
 * Results     out (lead..., queries, heads, value_depth) and, if there are two, lse
 *             (lead..., heads, queries).
 * Attributes  see `fields` below, and the string "isa".
 *
 * Query i is at position i, as in jax.nn. fastattn/jax.py has checked what a user can get wrong;
 * what is checked again here keeps a wrong program from touching memory that is not its own.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "blockmap.h"
#include "fastattn.h"
#include "xla_ffi.h"

enum { HAS_MASK = 1, HAS_QUERY_LENGTHS = 2, HAS_KEY_LENGTHS = 4 };
enum { MAX_RANK = FA_MAX_LEAD + 3 };

typedef struct {
    int64_t causal, left, right, optional, threads;
    double scale;
    char isa[32];
} call_options;

typedef struct {
    fa_args args;
    call_options options;
    int64_t batches;
    fa_tensor query_lengths, key_lengths; /* data NULL: none */
    int too_many_axes;                    /* which only vmap can bring about */
} request;

static const struct {
    const char *name;
    int32_t dtype;
    size_t offset;
} fields[] = {
    {"causal", XLA_S64, offsetof(call_options, causal)},
    {"left", XLA_S64, offsetof(call_options, left)},
    {"optional", XLA_S64, offsetof(call_options, optional)},
    {"right", XLA_S64, offsetof(call_options, right)},
    {"scale", XLA_F64, offsetof(call_options, scale)},
    {"threads", XLA_S64, offsetof(call_options, threads)},
};
enum { FIELDS = sizeof fields / sizeof *fields };

static xla_error *error(const xla_call_frame *frame, int32_t code, const char *message)
{
    xla_error_args args = {sizeof args, NULL, message, code};
    return frame->api->error_create(&args);
}

static int spells(const xla_span *span, const char *word)
{
    return span->length == strlen(word) && !memcmp(span->text, word, span->length);
}

static int read_options(const xla_attributes *attributes, call_options *options)
{
    int found = 0;
    for (int64_t n = 0; n < attributes->count; ++n) {
        const xla_span *name = attributes->names[n];
        if (attributes->kinds[n] == XLA_STRING && spells(name, "isa")) {
            const xla_span *isa = attributes->values[n];
            if (isa->length >= sizeof options->isa) return 0;
            memcpy(options->isa, isa->text, isa->length);
            ++found;
        }
        for (int field = 0; field < FIELDS; ++field) {
            const xla_scalar *scalar = attributes->values[n];
            if (attributes->kinds[n] != XLA_SCALAR || !spells(name, fields[field].name)) continue;
            if (scalar->dtype != fields[field].dtype) return 0;
            memcpy((char *)options + fields[field].offset, scalar->value, 8);
            ++found;
        }
    }
    return found == FIELDS + 1;
}

static int real_type(int32_t dtype, fa_dtype *type)
{
    switch (dtype) {
    case XLA_F32: *type = FA_FLOAT32; return 4;
    case XLA_F64: *type = FA_FLOAT64; return 8;
    case XLA_F16: *type = FA_FLOAT16; return 2;
    case XLA_BF16: *type = FA_BFLOAT16; return 2;
    default: return 0;
    }
}

/* Address and strides of a buffer (lead..., a, b, c) of this shape; an axis of one element repeats.
 * Axes a and b are sequence and head, or with `heads_first` the other way round. */
static int place(fa_tensor *tensor, const xla_buffer *buffer, const int64_t *shape, int lead_rank,
                 int element, int heads_first)
{
    int64_t strides[MAX_RANK], step = element;
    if (buffer->rank != lead_rank + 3) return 0;
    for (int axis = lead_rank + 2; axis >= 0; --axis) {
        const int64_t size = buffer->shape[axis];
        if (size != shape[axis] && size != 1) return 0;
        strides[axis] = size == shape[axis] ? step : 0;
        step *= size;
    }
    tensor->data = buffer->data;
    memcpy(tensor->lead, strides, (size_t)lead_rank * sizeof *strides);
    tensor->head = strides[lead_rank + !heads_first];
    tensor->row = strides[lead_rank + heads_first];
    tensor->column = strides[lead_rank + 2];
    return 1;
}

/* The same for (lead...) int32. */
static int place_lengths(fa_tensor *tensor, const xla_buffer *buffer, const fa_args *args)
{
    int64_t step = sizeof(int32_t);
    if (buffer->rank != args->lead_rank || buffer->dtype != XLA_S32) return 0;
    for (int axis = args->lead_rank - 1; axis >= 0; --axis) {
        const int64_t size = buffer->shape[axis];
        if (size != args->lead_shape[axis] && size != 1) return 0;
        tensor->lead[axis] = size == args->lead_shape[axis] ? step : 0;
        step *= size;
    }
    tensor->data = buffer->data;
    return 1;
}

static int64_t length_at(const fa_args *args, const fa_tensor *lengths, int64_t batch, int64_t most)
{
    int32_t length;
    memcpy(&length, (char *)lengths->data + fa_batch_offset(args, lengths, batch), sizeof length);
    return length < 0 ? 0 : length > most ? most : length;
}

/* Shapes and sizes from q, k, v and out; the axes before (sequence, head, depth) are leading. */
static int read_tensors(request *call, void *const *arguments, const xla_values *results)
{
    const xla_buffer *q = arguments[0], *k = arguments[1], *v = arguments[2];
    const xla_buffer *out = results->values[0];
    fa_args *args = &call->args;
    const int lead = (int)out->rank - 3;
    const int element = real_type(q->dtype, &args->dtype);
    int64_t shape[MAX_RANK];
    if (!element || k->dtype != q->dtype || v->dtype != q->dtype || out->dtype != q->dtype)
        return 0;
    call->too_many_axes = lead > FA_MAX_LEAD;
    if (lead < 0 || call->too_many_axes) return 0;
    if (k->rank != out->rank) return 0;
    args->kv_dtype = args->dtype;
    args->lead_rank = lead;
    call->batches = 1;
    for (int axis = 0; axis < lead; ++axis) {
        args->lead_shape[axis] = shape[axis] = out->shape[axis];
        call->batches *= shape[axis];
    }
    args->queries = out->shape[lead];
    args->q_heads = out->shape[lead + 1];
    args->value_depth = out->shape[lead + 2];
    args->keys = k->shape[lead];
    args->kv_heads = k->shape[lead + 1];
    args->depth = k->shape[lead + 2];

    const int64_t shapes[4][3] = {{args->queries, args->q_heads, args->depth},
                                  {args->keys, args->kv_heads, args->depth},
                                  {args->keys, args->kv_heads, args->value_depth},
                                  {args->queries, args->q_heads, args->value_depth}};
    const xla_buffer *buffers[4] = {q, k, v, out};
    fa_tensor *tensors[4] = {&args->q, &args->k, &args->v, &args->out};
    for (int n = 0; n < 4; ++n) {
        memcpy(shape + lead, shapes[n], sizeof shapes[n]);
        if (!place(tensors[n], buffers[n], shape, lead, element, 0)) return 0;
    }
    return 1;
}

static int read_lse(fa_args *args, const xla_buffer *lse)
{
    const int lead = args->lead_rank;
    if (lse->dtype != (args->dtype == FA_FLOAT64 ? XLA_F64 : XLA_F32)) return 0;
    if (lse->rank != lead + 2) return 0;
    if (lse->shape[lead] != args->q_heads || lse->shape[lead + 1] != args->queries) return 0;
    for (int axis = 0; axis < lead; ++axis)
        if (lse->shape[axis] != args->lead_shape[axis]) return 0;
    args->lse = lse->data;
    return 1;
}

static int read_mask(fa_args *args, const xla_buffer *mask)
{
    int64_t shape[MAX_RANK];
    int element = 1;
    if (mask->dtype == XLA_PRED) args->mask_dtype = FA_BOOL;
    else element = real_type(mask->dtype, &args->mask_dtype);
    memcpy(shape, args->lead_shape, (size_t)args->lead_rank * sizeof *shape);
    shape[args->lead_rank] = args->q_heads;
    shape[args->lead_rank + 1] = args->queries;
    shape[args->lead_rank + 2] = args->keys;
    return element && place(&args->mask, mask, shape, args->lead_rank, element, 1);
}

/* Fill `call` from the frame; 0 if the frame is not what fastattn/jax.py makes. */
static int read_frame(request *call, const xla_call_frame *frame)
{
    const xla_values *arguments = &frame->arguments, *results = &frame->results;
    fa_args *args = &call->args;
    call_options *options = &call->options;
    if (!read_options(&frame->attributes, options)) return 0;
    const int flags[3] = {HAS_MASK, HAS_QUERY_LENGTHS, HAS_KEY_LENGTHS};
    int64_t count = 3;
    for (int n = 0; n < 3; ++n) count += (options->optional & flags[n]) != 0;
    if (arguments->count != count || results->count < 1 || results->count > 2) return 0;
    for (int64_t n = 0; n < arguments->count; ++n)
        if (arguments->kinds[n] != XLA_BUFFER) return 0;
    for (int64_t n = 0; n < results->count; ++n)
        if (results->kinds[n] != XLA_BUFFER) return 0;

    if (!read_tensors(call, arguments->values, results)) return 0;
    if (results->count > 1 && !read_lse(args, results->values[1])) return 0;
    void *const *next = arguments->values + 3;
    if ((options->optional & HAS_MASK) && !read_mask(args, *next++)) return 0;
    if ((options->optional & HAS_QUERY_LENGTHS) &&
        !place_lengths(&call->query_lengths, *next++, args))
        return 0;
    if ((options->optional & HAS_KEY_LENGTHS) && !place_lengths(&call->key_lengths, *next++, args))
        return 0;
    args->size = sizeof *args;
    args->scale = options->scale;
    args->causal = options->causal != 0;
    args->left = options->left;
    args->right = options->right;
    args->threads = (int)options->threads;
    args->isa = options->isa;
    return 1;
}

/* Rows behind the last query of a sequence: out 0, lse -inf. */
static void clear_padding(const request *call)
{
    const fa_args *args = &call->args;
    const int64_t step = args->out.row; /* out is contiguous, (queries, heads, value_depth) */
    const int64_t heads = args->q_heads, queries = args->queries;
    for (int64_t batch = 0; batch < call->batches; ++batch) {
        const int64_t length = length_at(args, &call->query_lengths, batch, queries);
        char *out = (char *)args->out.data + (batch * queries + length) * step;
        memset(out, 0, (size_t)((queries - length) * step));
        for (int64_t row = batch * heads; args->lse && row < (batch + 1) * heads; ++row)
            for (int64_t query = length; query < queries; ++query)
                if (args->dtype == FA_FLOAT64)
                    ((double *)args->lse)[row * queries + query] = -INFINITY;
                else ((float *)args->lse)[row * queries + query] = -INFINITY;
    }
}

static xla_error *attend(const xla_call_frame *frame)
{
    request call = {0};
    fa_args *args = &call.args;
    if (!read_frame(&call, frame))
        return error(frame, XLA_INVALID_ARGUMENT,
                     call.too_many_axes
                         ? "fastattn: query: expected at most 9 axes with those of vmap, got more"
                         : "fastattn: arguments that do not fit each other");
    int64_t *positions = calloc((size_t)call.batches * 2 + 1, sizeof *positions);
    if (!positions)
        return error(frame, XLA_RESOURCE_EXHAUSTED, "fastattn: no memory for this call");
    args->q_offset = positions;
    if (call.key_lengths.data) {
        int64_t *ends = positions + call.batches;
        for (int64_t batch = 0; batch < call.batches; ++batch)
            ends[batch] = length_at(args, &call.key_lengths, batch, args->keys);
        args->kv_end = ends;
    }
    const fa_status status = fa_attention(args);
    if (status == FA_OK && call.query_lengths.data) clear_padding(&call);
    free(positions);
    switch (status) {
    case FA_OK: return NULL;
    case FA_NO_MEMORY:
        return error(frame, XLA_RESOURCE_EXHAUSTED, "fastattn: no memory for this call");
    case FA_UNSUPPORTED_ISA:
        return error(frame, XLA_FAILED_PRECONDITION,
                     "fastattn: this machine cannot run the instruction set asked for");
    default: return error(frame, XLA_INVALID_ARGUMENT, "fastattn: sizes that make no sense");
    }
}

FA_API xla_error *fa_xla_attention(xla_call_frame *frame)
{
    if (frame->size < sizeof *frame) /* an XLA from before version 0.1 */
        return error(frame, XLA_INVALID_ARGUMENT, "fastattn: XLA is too old");
    if (frame->extensions && frame->extensions->kind == XLA_EXTENSION_METADATA) {
        xla_metadata *metadata = ((xla_metadata_extension *)frame->extensions)->metadata;
        metadata->version = (xla_version){sizeof(xla_version), NULL, XLA_MAJOR, XLA_MINOR};
        metadata->traits = 0;
        return NULL;
    }
    if (frame->stage != XLA_STAGE_EXECUTE)
        return error(frame, XLA_INVALID_ARGUMENT, "fastattn: called in another stage than execute");
    return attend(frame);
}
