/* SPDX-License-Identifier: MIT */
#include "dispatch.h"

#include <stdlib.h>
#include <string.h>

#include "cpu.h"

/* FA_HAVE_<ISA> says that isa/<isa>.c is compiled in; setup.py defines it. */
#define FA_DECLARE(isa) extern const fa_kernels fa_kernels_##isa##_f32, fa_kernels_##isa##_f64;
#define FA_DECLARE_UNIT(isa) extern const fa_unit fa_unit_##isa;
FA_DECLARE(scalar)
FA_DECLARE(avx2)
FA_DECLARE_UNIT(avx2)
FA_DECLARE(avx512)
FA_DECLARE_UNIT(avx512_bf16)
FA_DECLARE_UNIT(amx)
FA_DECLARE(neon)
FA_DECLARE_UNIT(neon_bf16)

typedef struct {
    const char *name;
    const char *(*missing)(void);
    int (*permitted)(void); /* asks the system, for the whole process */
    const fa_kernels *f32, *f64;
    const fa_unit *unit; /* beside f32 */
} fa_isa;

static const fa_unit NO_UNIT = {NULL, NULL};

/* Ascending: the last one that can run here is the default. */
static const fa_isa ISAS[] = {
    {"scalar", fa_cpu_lacks_nothing, fa_cpu_permits_all, &fa_kernels_scalar_f32,
     &fa_kernels_scalar_f64, &NO_UNIT},
#if defined(FA_HAVE_AVX2)
    {"avx2", fa_cpu_lacks_avx2, fa_cpu_permits_all, &fa_kernels_avx2_f32, &fa_kernels_avx2_f64,
     &fa_unit_avx2},
#endif
#if defined(FA_HAVE_AVX512)
    {"avx512", fa_cpu_lacks_avx512, fa_cpu_permits_all, &fa_kernels_avx512_f32,
     &fa_kernels_avx512_f64, &NO_UNIT},
#endif
#if defined(FA_HAVE_AVX512_BF16)
    {"avx512_bf16", fa_cpu_lacks_avx512_bf16, fa_cpu_permits_all, &fa_kernels_avx512_f32,
     &fa_kernels_avx512_f64, &fa_unit_avx512_bf16},
#endif
#if defined(FA_HAVE_AMX)
    {"amx", fa_cpu_lacks_amx, fa_cpu_permits_amx, &fa_kernels_avx512_f32, &fa_kernels_avx512_f64,
     &fa_unit_amx},
#endif
#if defined(FA_HAVE_NEON)
    {"neon", fa_cpu_lacks_nothing, fa_cpu_permits_all, &fa_kernels_neon_f32, &fa_kernels_neon_f64,
     &NO_UNIT},
#endif
#if defined(FA_HAVE_NEON_BF16)
    {"neon_bf16", fa_cpu_lacks_neon_bf16, fa_cpu_permits_all, &fa_kernels_neon_f32,
     &fa_kernels_neon_f64, &fa_unit_neon_bf16},
#endif
};
enum { ISA_COUNT = sizeof ISAS / sizeof *ISAS };

const char *fa_isa_name(int index)
{
    return index >= 0 && index < ISA_COUNT ? ISAS[index].name : NULL;
}

/* Asking the CPU takes microseconds in a virtual machine, so it is asked once. Threads that race
 * here write the same word. */
static const char *lacks(int index)
{
    static const char *volatile answers[ISA_COUNT]; /* "": nothing */
    const char *answer = answers[index];
    if (!answer) {
        answer = ISAS[index].missing();
        if (!answer) answer = "";
        answers[index] = answer;
    }
    return *answer ? answer : NULL;
}

enum { UNKNOWN, YES, NO };
static volatile unsigned char known[ISA_COUNT];

static int available(int index)
{
    if (known[index] == UNKNOWN) known[index] = lacks(index) || !ISAS[index].permitted() ? NO : YES;
    return known[index] == YES;
}

/* Asks the CPU and the system what they have, and never the system for permission. */
const char *fa_isa_missing(int index)
{
    if (index < 0 || index >= ISA_COUNT) return "no such instruction set";
    const char *missing = lacks(index);
    if (!missing && known[index] == NO) return "the operating system refused its registers";
    return missing;
}

static const fa_isa *find(const char *name)
{
    for (int i = ISA_COUNT - 1; i >= 0; --i)
        if (!name || strcmp(name, ISAS[i].name) == 0) {
            if (available(i)) return &ISAS[i];
            if (name) return NULL;
        }
    return NULL;
}

static const fa_isa *chosen(const char *name)
{
    if (!name) name = getenv("FASTATTN_ISA");
    return find(name && *name ? name : NULL);
}

const char *fa_isa_default(void)
{
    const fa_isa *isa = chosen(NULL);
    return isa ? isa->name : NULL;
}

const fa_kernels *fa_kernels_for(const char *name, fa_dtype dtype, const fa_unit **unit)
{
    const fa_isa *isa = chosen(name);
    *unit = &NO_UNIT;
    if (!isa) return NULL;
    if (dtype != FA_FLOAT32) return dtype == FA_FLOAT64 ? isa->f64 : NULL;
    *unit = isa->unit;
    return isa->f32;
}
