/* SPDX-License-Identifier: MIT */
#if defined(__linux__)
#define _GNU_SOURCE /* syscall */
#endif
#include "cpu.h"

#include <stddef.h>
#include <stdint.h>

const char *fa_cpu_lacks_nothing(void) { return NULL; }
int fa_cpu_permits_all(void) { return 1; }

#if defined(__x86_64__) || defined(_M_X64)

#if defined(_MSC_VER)
#include <intrin.h>

static void cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4])
{
    __cpuidex((int *)out, (int)leaf, (int)subleaf);
}
static uint64_t enabled_state(void) { return _xgetbv(0); }
#else
#include <cpuid.h>

static void cpuid(uint32_t leaf, uint32_t subleaf, uint32_t out[4])
{
    if (!__get_cpuid_count(leaf, subleaf, &out[0], &out[1], &out[2], &out[3]))
        out[0] = out[1] = out[2] = out[3] = 0;
}

static uint64_t enabled_state(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}
#endif

enum { EAX, EBX, ECX, EDX };
#define BIT(n) (UINT32_C(1) << (n))

/* The operating system must save the registers (XCR0), or another process would clobber them. */
static int saves(uint64_t states)
{
    uint32_t leaf1[4];
    cpuid(1, 0, leaf1);
    const int osxsave = (leaf1[ECX] & BIT(27)) != 0;
    return osxsave && (enabled_state() & states) == states;
}

const char *fa_cpu_lacks_avx2(void)
{
    uint32_t leaf1[4], leaf7[4];
    cpuid(1, 0, leaf1);
    cpuid(7, 0, leaf7);
    if (!(leaf7[EBX] & BIT(5))) return "the CPU has no AVX2";
    if (!(leaf1[ECX] & BIT(12))) return "the CPU has no FMA";
    if (!(leaf1[ECX] & BIT(29))) return "the CPU has no F16C";
    if (!saves(0x6)) return "the operating system does not save AVX registers";
    return NULL;
}

const char *fa_cpu_lacks_avx512(void)
{
    const uint32_t needed = BIT(16) | BIT(17) | BIT(30) | BIT(31); /* F, DQ, BW, VL */
    uint32_t leaf7[4];
    cpuid(7, 0, leaf7);
    if (fa_cpu_lacks_avx2()) return fa_cpu_lacks_avx2();
    if ((leaf7[EBX] & needed) != needed) return "the CPU has no AVX-512 (F, DQ, BW, VL)";
    if (!saves(0xe6)) return "the operating system does not save AVX-512 registers";
    return NULL;
}

/* Where VDPBF16PS takes as long as four multiply-adds, as on Sapphire Rapids (measured), it is of
 * no use; on Zen 4 it takes as long as one. */
static int made_by_intel(void)
{
    uint32_t leaf0[4];
    cpuid(0, 0, leaf0);
    return leaf0[EBX] == 0x756e6547 && leaf0[EDX] == 0x49656e69; /* "Genu", "ineI" */
}

const char *fa_cpu_lacks_avx512_bf16(void)
{
    uint32_t leaf7[4];
    if (fa_cpu_lacks_avx512()) return fa_cpu_lacks_avx512();
    cpuid(7, 0, leaf7);
    if (!(leaf7[ECX] & BIT(1))) return "the CPU has no AVX512-VBMI";
    if (!(leaf7[ECX] & BIT(11))) return "the CPU has no AVX512-VNNI";
    cpuid(7, 1, leaf7);
    if (!(leaf7[EAX] & BIT(5))) return "the CPU has no arithmetic of bfloat16 (AVX512-BF16)";
    if (made_by_intel()) return "the CPU's arithmetic of bfloat16 is slower than that of float32";
    return NULL;
}

#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>

/* arch_prctl: which extended states a process may ask for, and asking (Linux 5.16). */
enum { GET_STATES = 0x1021, ASK_FOR_STATE = 0x1023, TILE_DATA = 18 };

static int system_knows_tiles(void)
{
    uint64_t states = 0;
    return !syscall(SYS_arch_prctl, GET_STATES, &states) && states >> TILE_DATA & 1;
}

int fa_cpu_permits_amx(void) { return !syscall(SYS_arch_prctl, ASK_FOR_STATE, TILE_DATA); }
#else
static int system_knows_tiles(void) { return 0; }
int fa_cpu_permits_amx(void) { return 0; }
#endif

const char *fa_cpu_lacks_amx(void)
{
    uint32_t leaf7[4];
    cpuid(7, 0, leaf7);
    if (fa_cpu_lacks_avx512()) return fa_cpu_lacks_avx512();
    const uint32_t needed = BIT(22) | BIT(24) | BIT(25);
    if ((leaf7[EDX] & needed) != needed) return "the CPU has no AMX (tile, bf16, int8)";
    if (!(leaf7[ECX] & BIT(1))) return "the CPU has no AVX512-VBMI";
    if (!(leaf7[ECX] & BIT(8))) return "the CPU has no GFNI";
    if (!saves(0x600e6)) return "the operating system does not save AMX tiles";
    if (!system_knows_tiles()) return "the operating system does not give tiles to processes";
    return NULL;
}

#elif defined(__aarch64__)

#if defined(__linux__)
#include <sys/auxv.h>

static int has_bf16(void) { return (getauxval(AT_HWCAP2) & UINT64_C(1) << 14) != 0; }
#elif defined(__APPLE__)
#include <sys/sysctl.h>

static int has_bf16(void)
{
    int there = 0;
    size_t size = sizeof there;
    return !sysctlbyname("hw.optional.arm.FEAT_BF16", &there, &size, NULL, 0) && there;
}
#else
static int has_bf16(void) { return 0; }
#endif

/* Arm Architecture Reference Manual, FEAT_BF16: BFMMLA and conversions. */
const char *fa_cpu_lacks_neon_bf16(void)
{
    return has_bf16() ? NULL : "the CPU has no arithmetic of bfloat16 (FEAT_BF16)";
}
#endif
