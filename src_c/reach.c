/* SPDX-License-Identifier: MIT
 * A score is no greater than the norms of its query and of its key times each other, and ALiBi
 * takes slope * distance from it (Press et al. 2022, arXiv:2108.12409). So from some distance on a
 * key counts for nothing beside the nearest one, whatever both hold.
 */
#include "reach.h"

#include <math.h>

#include "numbers.h"
#include "worker.h"

enum {
    LOT = 64,         /* rows looked at at a time */
    LEAST_ROWS = 128, /* of queries: looking at K and V is little work beside theirs */
};

/* From the negative of the greatest score up to it, and what is rounded on the way, to 8 bits at
 * worst. */
static const double ROUNDED = 2.05;

/* In units of log2: so small are weights that the table takes for 0. */
static double nothing(const fa_plan *plan)
{
    return plan->kernels->real_size == (int)sizeof(float) ? 127 : 1023;
}

/* Under an explicit mask the nearest key may be one that is forbidden. */
int64_t fa_reach_bytes(const fa_plan *plan)
{
    const fa_args *args = plan->args;
    const int scattered = plan->q_scattered || plan->k_scattered || plan->v_scattered;
    if (!args->alibi || args->mask.data || plan->weights || scattered) return 0;
    return plan->sequences * args->kv_heads * (int64_t)sizeof *plan->reach;
}

/* The least slope of the heads of a group, but of those that are no number. */
static double least_slope(const fa_plan *plan, int64_t sequence, int64_t kv_head)
{
    const double *slopes =
        plan->args->alibi + sequence * plan->args->q_heads + kv_head * plan->group;
    double least = slopes[0];
    for (int64_t head = 1; head < plan->group; ++head)
        if (slopes[head] < least || isnan(least)) least = slopes[head];
    return least;
}

/* Of rows whose squares have no greater sum than this one, to which those below the least normal
 * number may have added nothing. */
static double norm(const fa_plan *plan, double square, int64_t columns)
{
    return sqrt(square + (double)columns * exp2(1 - nothing(plan)));
}

/* The greatest norm of a row; infinite if some number is not finite. */
static double norm_of_queries(const fa_plan *plan, const fa_sequence *sequence, int64_t kv_head)
{
    const int64_t rows = sequence->queries * plan->group;
    double greatest = 0;
    for (int64_t row = 0; row < rows; row += LOT) {
        void *lot[LOT];
        const int count = (int)smaller(rows - row, LOT);
        fa_point_queries(plan, sequence, &plan->args->q, kv_head, row, count, lot);
        const double square = plan->kernels->greatest_square(
            plan->q_storage, (const void *const *)lot, count, plan->args->depth, NULL);
        if (square > greatest) greatest = square;
    }
    return norm(plan, greatest, plan->args->depth);
}

/* The same of K or V. */
static double norm_of_keys(const fa_plan *plan, const fa_rows *rows, const fa_rows *scales,
                           fa_span keys)
{
    double greatest = 0;
    for (int64_t key = keys.begin; key < keys.end; key += LOT) {
        const void *lot[LOT];
        float scale[LOT];
        const int count = (int)smaller(keys.end - key, LOT);
        fa_rows_point(rows, key, count, lot);
        if (scales) fa_worker_scales(scales, key, count, scale);
        const double square = plan->kernels->greatest_square(rows->storage, lot, count,
                                                             rows->columns, scales ? scale : NULL);
        if (square > greatest) greatest = square;
    }
    return norm(plan, greatest, rows->columns);
}

/* Of a kv head's K or V, and what scales it has. */
static double norm_of(const fa_plan *plan, const fa_sequence *sequence, const fa_tensor *tensor,
                      const fa_tensor *scale, int64_t kv_head, int64_t columns, fa_span keys)
{
    fa_rows rows, scales;
    fa_set_rows(&rows, plan, tensor, sequence, kv_head, columns, plan->kv_storage);
    if (!scale->data) return norm_of_keys(plan, &rows, NULL, keys);
    fa_set_rows(&scales, plan, scale, sequence, kv_head, 1, FA_REAL);
    return norm_of_keys(plan, &rows, &scales, keys);
}

/* Scores lie between the negative of it and it; infinite if some number is. */
static double greatest_score(const fa_plan *plan, const fa_sequence *sequence, int64_t kv_head,
                             fa_span keys)
{
    const fa_args *args = plan->args;
    const double k = norm_of(plan, sequence, &args->k, &args->k_scale, kv_head, args->depth, keys);
    const double v =
        norm_of(plan, sequence, &args->v, &args->v_scale, kv_head, args->value_depth, keys);
    const double score = fabs(args->scale) * norm_of_queries(plan, sequence, kv_head) * k;
    if (!(score < INFINITY) || !(v < INFINITY)) return INFINITY;
    return args->softcap > 0 && args->softcap < score ? args->softcap : score;
}

void fa_reach_fill(const fa_plan *plan, int64_t index)
{
    const int64_t kv_head = index % plan->args->kv_heads;
    fa_sequence sequence;
    fa_plan_sequence(plan, index / plan->args->kv_heads, &sequence);
    const fa_span keys = fa_span_of(&sequence.positions, 0, sequence.queries);
    const double slope = least_slope(plan, sequence.index, kv_head) * FA_LOG2E;
    const double least = nothing(plan) / slope; /* were all scores 0 */
    plan->reach[index] = sequence.keys;
    if (sequence.queries * plan->group < LEAST_ROWS) return;
    if (!(slope > 0) || !(2 * least < (double)(keys.end - keys.begin))) return;
    const double score = greatest_score(plan, &sequence, kv_head, keys) * FA_LOG2E;
    const double reach = least + (ROUNDED * score + 2) / slope;
    if (reach < (double)sequence.keys) plan->reach[index] = (int64_t)reach + 1;
}
