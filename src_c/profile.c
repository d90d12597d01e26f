/* SPDX-License-Identifier: MIT */
#include "profile.h"

#if defined(FA_PROFILE)
#include <stdlib.h>
#include <time.h>

enum { THREADS = 256 };

typedef struct {
    fa_event *events;
    int64_t count, capacity;
} record;

static record records[THREADS];
static int recording;
static int64_t call_begin;
static _Thread_local int self;
static _Thread_local int64_t last;

static int64_t now(void)
{
    struct timespec time;
    timespec_get(&time, TIME_UTC);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

static void add(record *to, fa_event event)
{
    if (to->count == to->capacity) {
        const int64_t capacity = to->capacity ? 2 * to->capacity : 1 << 12;
        fa_event *larger = realloc(to->events, (size_t)capacity * sizeof *larger);
        if (!larger) return; /* what does not fit is missing: the sums say so, as waiting */
        to->events = larger;
        to->capacity = capacity;
    }
    to->events[to->count++] = event;
}

void fa_profile_start(void)
{
    for (int n = 0; n < THREADS; ++n) records[n].count = 0;
    recording = 1;
}

const fa_event *fa_profile_events(int thread, int64_t *count)
{
    recording = 0;
    const record *from = thread >= 0 && thread < THREADS ? &records[thread] : NULL;
    *count = from ? from->count : 0;
    return *count ? from->events : NULL;
}

void fa_profile_call(int begins)
{
    if (!recording) return;
    if (begins) call_begin = now();
    else add(&records[0], (fa_event){call_begin, now(), -1});
}

void fa_profile_enter(int thread)
{
    if (!recording) return;
    self = thread < THREADS ? thread : THREADS - 1;
    last = now();
}

void fa_profile_mark(fa_stage stage)
{
    if (!recording) return;
    const int64_t begin = last;
    last = now();
    add(&records[self], (fa_event){begin, last, stage});
}

int fa_profile_slow(void)
{
    static int known = -1;
    if (known < 0) {
        const char *setting = getenv("FASTATTN_SLOW");
        known = setting ? atoi(setting) : 0;
    }
    return known;
}
#else
typedef int fa_profile_nothing; /* C wants something in every file */
#endif
