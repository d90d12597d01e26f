/* SPDX-License-Identifier: MIT
 * Timestamps of the instrumented build (FASTATTN_PROFILE=1 when setup.py runs): what each thread
 * does during one call. In any other build the macros are nothing.
 *
 * For one call at a time. Read by fastattn/measure/profile.py, which knows the order of the stages.
 */
#ifndef FA_PROFILE_H
#define FA_PROFILE_H

#if defined(FA_PROFILE)
#include <stdint.h>

#include "fastattn.h"

typedef enum {
    FA_STAGE_PACK,    /* queries in */
    FA_STAGE_LOAD,    /* rows of K and V: addresses, copies in another type */
    FA_STAGE_SCORES,  /* QK^T */
    FA_STAGE_MASK,    /* masks and other options */
    FA_STAGE_SOFTMAX, /* maxima, exponentials, sums */
    FA_STAGE_OUTPUT,  /* PV */
    FA_STAGE_MERGE,   /* chunks of keys */
    FA_STAGE_WRITE,   /* results out */
    FA_STAGE_MAP,     /* which blocks of a mask matter */
    FA_STAGE_MATRIX   /* all of a block on the matrix unit, where stages take turns */
} fa_stage;

typedef struct {
    int64_t begin, end; /* nanoseconds */
    int64_t stage;      /* -1: the whole call */
} fa_event;

/* Forget everything and record from now on. */
FA_API void fa_profile_start(void);
/* Stop; the events of a thread, in order. NULL: it has none. */
FA_API const fa_event *fa_profile_events(int thread, int64_t *count);

void fa_profile_call(int begins);
void fa_profile_enter(int thread);
void fa_profile_mark(fa_stage stage);
/* How many times more than once scores are computed: FASTATTN_SLOW, a kernel slowed on purpose. */
int fa_profile_slow(void);

#define FA_CALL(begins) fa_profile_call(begins) /* a call begins, or ends */
#define FA_ENTER(thread)                                                                           \
    fa_profile_enter(thread)                  /* this thread takes up a task; it waited before */
#define FA_MARK(stage) fa_profile_mark(stage) /* what it did since the last mark */
#else
#define FA_CALL(begins) ((void)0)
#define FA_ENTER(thread) ((void)0)
#define FA_MARK(stage) ((void)0)
#endif

#endif
