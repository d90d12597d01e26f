/* SPDX-License-Identifier: MIT
 * How calls are dealt to threads, with kernels that only have sizes: the same on every machine, and
 * nothing is computed. Of arguments like keys=512 prints what is planned for that call, and how
 * many rows come unasked where one thread makes it; without any deals out calls at random, and sees
 * whether all of each is dealt once, the longest tasks first.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dispatch.h"
#include "numbers.h"
#include "parallel.h"
#include "plan.h"
#include "tensors.h"
#include "worker.h"

enum {
    BATCH,
    HEADS,
    GROUP,
    QUERIES,
    KEYS,
    DEPTH,
    THREADS,
    INSIDE,
    CAUSAL,
    BFLOAT,
    UNIT,
    WEIGHTS,
    IN_ORDER,
    PAGE,
    CUTS,
    LAST,
    MASK,
    WINDOW,
    NUMBERS
};
static const char *const NAMES[NUMBERS] = {
    "batch",  "heads", "group",   "queries",  "keys", "depth", "threads", "inside", "causal",
    "bfloat", "unit",  "weights", "in_order", "page", "cuts",  "last",    "mask",   "window"};
enum { CALLS = 4000, MOST_BATCHES = 8, MOST_KEYS = 40000, LEAST_PAGE = 4 };
enum { ALIKE, OF_LENGTHS, PACKED }; /* cuts */

/* ---- what stands for kernels ---- */

static int arrange(int rows, fa_storage storage, int *spread)
{
    (void)storage;
    *spread = 1;
    return rows;
}

/* Rows of a call that kernels ask for, and use. They are at addresses of no memory. */
enum { Q, K, V, OUT, TENSORS, APART = 1 << 30, MOST_ROWS = 1 << 16, ASKED = 1, USED };
static uint8_t known[TENSORS * MOST_ROWS];
static int64_t row_bytes, rows_of[TENSORS], unasked[TENSORS], vain;

/* What is known of it, or NULL: it is none of the rows. */
static uint8_t *row_at(const void *address)
{
    const int64_t tensor = (intptr_t)address / APART - 1;
    const int64_t row = (intptr_t)address % APART / row_bytes;
    if (tensor >= 0 && tensor < TENSORS && row < rows_of[tensor])
        return &known[tensor * MOST_ROWS + row];
    vain += tensor <= TENSORS; /* or else it is a copy */
    return NULL;
}

static void ask(const void *address)
{
    uint8_t *row = row_at(address);
    if (row) *row |= ASKED;
}

static void use(const void *address)
{
    uint8_t *row = row_at(address);
    if (row && !*row) ++unasked[(row - known) / MOST_ROWS];
    if (row) *row = USED;
}

static void pack(fa_tile *tile, fa_storage storage, const void *const *rows, int count,
                 double factor)
{
    (void)tile, (void)storage, (void)factor;
    for (int n = 0; n < count; ++n) use(rows[n]);
}

static void widen(fa_storage storage, const void *const *rows, int count, int64_t columns,
                  const float *scales, void *to)
{
    (void)storage, (void)columns, (void)scales, (void)to;
    for (int n = 0; n < count; ++n) use(rows[n]);
}

static void update(fa_tile *tile, const fa_block *block)
{
    (void)tile;
    for (int n = 0; n < block->keys; ++n) {
        use(block->k[n]), use(block->v[n]);
        ask(block->k_ahead[n]), ask(block->v_ahead[n]);
        if (block->soon) ask(block->soon[n]);
    }
    for (int n = block->keys; n < block->keys + FA_KEY_PADDING; ++n)
        row_at(block->k_ahead[n]), row_at(block->v_ahead[n]);
}

static void finish(const fa_tile *tile, fa_storage storage, void *const *rows, int count)
{
    (void)tile, (void)storage;
    for (int n = 0; n < count; ++n) use(rows[n]);
}

static void begin(fa_tile *tile, const void *sinks) { (void)sinks, tile->fresh = 1; }

static void merge(fa_tile *into, const fa_tile *from) { (void)into, (void)from; }

static int64_t panel_bytes(int64_t rows, int64_t depth) { return rows * round_up(depth, 32) * 2; }

static const int THIN_ROWS[FA_STORAGES] = {12, 12, 12, 12, 12, 12};
static fa_kernels kernels = {.real_size = 4,
                             .lanes = 8,
                             .max_vectors = 3,
                             .key_block = 64,
                             .thin_rows = 4,
                             .most_thin_rows = THIN_ROWS,
                             .widest_thin = 4,
                             .bytes_ahead = 10 * 1024,
                             .arrange = arrange,
                             .pack = pack,
                             .widen = widen,
                             .begin = begin,
                             .update = update,
                             .merge = merge,
                             .finish = finish};
static const fa_matrix wide[FA_SPLITS] = {{.pieces = 1,
                                           .max_vectors = 4,
                                           .key_block = 128,
                                           .min_rows = 16,
                                           .min_key_numbers = 4096,
                                           .load_keys = 256,
                                           .rows_ahead = 64,
                                           .chunk_keys = 4096,
                                           .panel_bytes = panel_bytes}};
static fa_unit unit;

const fa_kernels *fa_kernels_for(const char *isa, fa_dtype dtype, const fa_unit **beside)
{
    (void)isa, (void)dtype;
    *beside = &unit;
    return &kernels;
}

int fa_threads_for(int wanted) { return wanted; }

void fa_parallel_for(int64_t tasks, int threads, fa_task *run, void *context)
{
    (void)threads;
    for (int64_t n = 0; n < tasks; ++n) run(context, n, n + 1 < tasks ? n + 1 : -1, 0);
}

/* ---- calls ---- */

static int64_t number, cuts[2][MOST_BATCHES + 1], ends[MOST_BATCHES];
static int32_t table[MOST_BATCHES * MOST_KEYS / LEAST_PAGE];

static fa_tensor tensor_of(const int64_t *call, int tensor, int64_t heads, int64_t rows)
{
    const int64_t row = row_bytes = call[DEPTH] * (call[BFLOAT] ? 2 : 4);
    fa_tensor t = {.row = row, .column = call[BFLOAT] ? 2 : 4, .head = rows * row};
    t.data = (void *)((intptr_t)(tensor + 1) * APART);
    rows_of[tensor] = call[BATCH] * heads * rows;
    if (call[INSIDE]) t.head = row, t.row = heads * row;
    t.lead[0] = heads * rows * row;
    return t;
}

/* Of what is known of the last one the others have equal shares; else many have no rows. */
static void cut(int64_t *starts, int64_t rows, const int64_t *call)
{
    const int64_t others = call[BATCH] - 1;
    starts[0] = 0;
    for (int64_t n = 0; n < others; ++n)
        starts[n + 1] = call[LAST] ? (rows - call[LAST]) * (n + 1) / others
                                   : starts[n] + draw(2) * draw((uint32_t)(rows - starts[n]) + 1);
    starts[others + 1] = call[LAST] || draw(2) ? rows : starts[others];
}

static void set_pages(fa_args *a, int64_t page, int64_t heads)
{
    a->block_table = table, a->page_keys = page, a->pages = 1;
    a->table_width = divide_up(a->keys, page);
    fa_tensor *const both[] = {&a->k, &a->v};
    for (int n = 0; n < 2; ++n) {
        if (both[n]->head > both[n]->row) both[n]->head = page * both[n]->row;
        both[n]->page = heads * page * a->depth * both[n]->column;
    }
}

static fa_args arguments_of(const int64_t *call)
{
    fa_args a = {.size = sizeof a, .left = call[WINDOW] - 1, .right = -1, .scale = 1};
    const int64_t heads = call[HEADS] * call[GROUP], last = call[BATCH] - 1;
    a.dtype = a.kv_dtype = call[BFLOAT] ? FA_BFLOAT16 : FA_FLOAT32;
    a.lead_rank = call[CUTS] != PACKED, a.lead_shape[0] = a.sequences = call[BATCH];
    a.q_heads = heads, a.kv_heads = call[HEADS], a.queries = call[QUERIES], a.keys = call[KEYS];
    a.depth = a.value_depth = call[DEPTH];
    a.q = tensor_of(call, Q, heads, call[QUERIES]), a.out = tensor_of(call, OUT, heads, a.queries);
    a.k = tensor_of(call, K, call[HEADS], a.keys), a.v = tensor_of(call, V, call[HEADS], a.keys);
    if (call[WEIGHTS]) a.out.column = kernels.real_size;
    a.causal = (int)call[CAUSAL], a.threads = (int)call[THREADS];
    if (call[PAGE]) set_pages(&a, call[PAGE], call[HEADS]);
    cut(cuts[0], call[QUERIES], call), cut(cuts[1], call[KEYS], call);
    if (call[CUTS] == PACKED) a.cu_q = cuts[0], a.cu_k = cuts[1];
    for (int64_t n = 0; n <= last; ++n)
        ends[n] = call[LAST] ? n < last ? call[KEYS] : call[LAST] : draw((uint32_t)call[KEYS] + 1);
    if (call[CUTS] == OF_LENGTHS) a.kv_end = ends;
    a.mask_dtype = FA_BOOL, a.mask.row = call[KEYS], a.mask.column = 1;
    if (call[MASK]) a.mask.data = &number;
    unit.wide = call[UNIT] ? wide : NULL;
    kernels.heads_in_order = (int)call[IN_ORDER];
    return a;
}

static fa_status plan_call(fa_plan *plan, const int64_t *call)
{
    const fa_args a = arguments_of(call);
    return fa_plan_make(plan, &a, (int)call[WEIGHTS]);
}

/* Of plain tasks, and of rows that there is room for. */
static void print_unasked(const int64_t *call)
{
    const fa_args a = arguments_of(call);
    int plain = !call[UNIT] && !call[WEIGHTS] && !call[PAGE] && !call[MASK];
    for (int n = 0; n < TENSORS; ++n) plain &= rows_of[n] <= MOST_ROWS;
    if (!plain || fa_attention(&a) != FA_OK) return;
    for (int n = 0; n < TENSORS * MOST_ROWS; ++n) vain += known[n] == ASKED;
    for (int n = 0; n < TENSORS; ++n) printf("%d ", (int)unasked[n]);
    printf("%d\n", (int)vain);
}

/* ---- whether all is dealt once ---- */

/* How often each chunk of each tile, the sequences one after another, and each line of states. */
static struct {
    int64_t first[MOST_BATCHES + 1];
    uint8_t *chunks, *lines;
} dealt;

static void count_chunks(const fa_plan *plan)
{
    for (int64_t n = 0; n < plan->sequences; ++n) {
        fa_sequence of;
        fa_plan_sequence(plan, n, &of);
        dealt.first[n + 1] = dealt.first[n] + plan->args->kv_heads * of.tiling.tiles * of.chunks;
    }
    dealt.chunks = calloc((size_t)dealt.first[plan->sequences] + 1, 1);
    dealt.lines = calloc((size_t)(plan->entries[plan->sequences].first_state / FA_LINE) + 1, 1);
}

static void note_state(const fa_plan *plan, const fa_share *share, const fa_sequence *of,
                       const int64_t *at)
{
    const char *state = fa_state_at(plan, share->entry, of, at[0], at[1], at[2]);
    const int64_t line = (state - plan->states) / FA_LINE;
    for (int64_t n = 0; n < fa_state_bytes(plan, of) / FA_LINE; ++n) ++dealt.lines[line + n];
}

/* Whether there is what this share is of, and scratch for it. */
static int note(const fa_plan *plan, const fa_share *share, const fa_sequence *of, int by_chunks)
{
    const int64_t begin = by_chunks ? share->first_chunk : 0;
    const int64_t end = by_chunks ? share->chunk_end : of->chunks;
    const int64_t tiles = share->first_tile + share->tiles, heads = share->kv_head + share->heads;
    const int64_t room = larger(plan->tiles, plan->heads * plan->thin_tiles);
    if (share->tiles < 1 || share->heads < 1 || begin < 0 || begin >= end || end > of->chunks ||
        tiles > of->tiling.tiles || heads > plan->args->kv_heads ||
        share->tiles * share->heads > room || room > FA_MAX_TILES)
        return 0;
    for (int64_t head = share->kv_head; head < heads; ++head)
        for (int64_t tile = share->first_tile; tile < tiles; ++tile)
            for (int64_t chunk = begin; chunk < end; ++chunk) {
                const int64_t at[] = {head, tile, chunk};
                const int64_t row = (head * of->tiling.tiles + tile) * of->chunks;
                ++dealt.chunks[dealt.first[of->index] + row + chunk];
                if (by_chunks) note_state(plan, share, of, at);
            }
    return 1;
}

static int all_once(const fa_plan *plan, int by_chunks)
{
    const int64_t lines = by_chunks ? plan->entries[plan->sequences].first_state / FA_LINE : 0;
    int once = 1;
    for (int64_t n = 0; n < dealt.first[plan->sequences]; ++n) once &= dealt.chunks[n] == 1;
    for (int64_t n = 0; n < lines; ++n) once &= dealt.lines[n] == 1;
    memset(dealt.chunks, 0, (size_t)dealt.first[plan->sequences]);
    return once;
}

/* The keys of most of its tiles, and a little for none. */
static int64_t length(const fa_plan *plan, const fa_sequence *of)
{
    const int64_t keys = larger(of->positions.end - of->positions.begin, 0);
    return (keys + 16) * smaller(of->tiling.tiles, plan->tiles);
}

/* Longer sequences first, and equals as they come; of one, head by head, so that keys stay in the
 * cache, or the queries first that see most keys. */
static int in_order(const fa_plan *plan, const fa_share *before, const fa_share *share)
{
    fa_sequence of, of_before;
    fa_plan_sequence(plan, share->entry->sequence, &of);
    fa_plan_sequence(plan, before->entry->sequence, &of_before);
    const int64_t more = length(plan, &of_before) - length(plan, &of);
    if (before->entry != share->entry) return more > 0 || (more == 0 && of.index > of_before.index);
    if (before->first_chunk != share->first_chunk) return before->first_chunk < share->first_chunk;
    const int after = share->first_tile > before->first_tile;
    if (of.positions.right >= 0 && of.positions.right < of.keys) return !after;
    return share->kv_head == before->kv_head ? after : share->kv_head > before->kv_head;
}

/* Under a mask: one map says which blocks of which tiles it leaves. */
static int cut_alike(const fa_plan *plan)
{
    int alike = 1;
    for (int64_t n = 0; plan->args->mask.data && n < plan->sequences; ++n) {
        fa_sequence of;
        fa_plan_sequence(plan, n, &of);
        alike &= of.key_block == plan->map_plan.key_block;
        alike &= of.tiling.tiles == plan->map_tiling.tiles;
        for (int64_t tile = 0; alike && tile < of.tiling.tiles; ++tile) {
            const fa_tile_rows a = fa_tile_at(&of.tiling, tile);
            const fa_tile_rows b = fa_tile_at(&plan->map_tiling, tile);
            alike &= a.row_begin == b.row_begin && a.rows == b.rows;
        }
    }
    return alike;
}

static int check(const int64_t *call)
{
    fa_plan plan;
    if (plan_call(&plan, call) != FA_OK) return 0;
    fa_sequence of;
    fa_share before;
    count_chunks(&plan);
    int right =
        cut_alike(&plan) && plan.tasks >= plan.parts && plan.threads <= larger(plan.tasks, 1);
    for (int64_t task = 0; task < plan.tasks; ++task) {
        const fa_share share = fa_share_of_task(&plan, task, &of);
        right &= note(&plan, &share, &of, plan.split);
        right &= task == 0 || in_order(&plan, &before, &share);
        before = share;
    }
    right &= all_once(&plan, plan.split);
    for (int64_t part = 0; part < plan.parts; ++part) {
        const fa_share share = fa_share_of_part(&plan, part, &of);
        right &= note(&plan, &share, &of, 0);
    }
    right &= all_once(&plan, 0);
    free(dealt.chunks), free(dealt.lines), fa_plan_free(&plan);
    return right;
}

static void draw_call(int64_t *call)
{
    static const int64_t most[] = {2, 20, 150, 1000}, keys[] = {70, 700, 5000, MOST_KEYS};
    for (int n = 0; n < NUMBERS; ++n) call[n] = draw(2);
    call[BATCH] = 1 + draw(MOST_BATCHES), call[HEADS] = 1 + draw(9), call[GROUP] = 1 + draw(3);
    call[QUERIES] = 1 + draw((uint32_t)most[draw(4)]), call[KEYS] = draw((uint32_t)keys[draw(4)]);
    call[DEPTH] = draw(8) ? 32 : 2000, call[THREADS] = 1 + draw(draw(2) ? 4 : 64);
    call[CUTS] = draw(3), call[LAST] = 0, call[PAGE] = draw(4) ? 0 : LEAST_PAGE + draw(30);
    if (call[CUTS] == PACKED) call[WEIGHTS] = call[MASK] = 0;
}

int main(int count, char **words)
{
    int64_t call[NUMBERS] = {[BATCH] = 1, [HEADS] = 1, [GROUP] = 1, [DEPTH] = 64, [THREADS] = 4};
    int wrong = 0;
    for (int n = 1; n < count; ++n)
        for (int name = 0; name < NUMBERS; ++name) {
            const size_t end = strlen(NAMES[name]);
            if (strncmp(words[n], NAMES[name], end) || words[n][end] != '=') continue;
            call[name] = atoll(words[n] + end + 1);
        }
    for (int n = 0; count == 1 && n < CALLS; ++n) {
        draw_call(call);
        if (!check(call)) ++wrong, printf("call %d\n", n);
    }
    fa_plan plan;
    if (count == 1) return printf("%d wrong\n", wrong), wrong;
    if (plan_call(&plan, call) != FA_OK) return 1;
    printf("%d %d %d %d %d ", plan.threads, plan.tiles, plan.heads, plan.split, (int)plan.tasks);
    puts(plan.far ? plan.in_order && plan.heads > 1 ? "far, in order" : "far" : "");
    print_unasked(call);
    return fa_plan_free(&plan), 0;
}
