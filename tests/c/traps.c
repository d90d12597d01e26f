/* SPDX-License-Identifier: MIT
 * AMX on a CPU that has AVX-512 (with VBMI and GFNI) but no tiles: each instruction of the unit is
 * illegal there, and its signal handler does what the unit would have done (tiles.h). So the code
 * that the compiler made for AMX runs, not another made for emulation. Linked with
 *   -Wl,--wrap=fa_cpu_lacks_amx,--wrap=fa_cpu_permits_amx
 * (step `tiles` of .ci/run) this file answers in the place of src_c/cpu.c.
 *
 * Encodings: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2, 2.3.5 (VEX),
 * 2.1.5 (ModRM and SIB) and the pages of the instructions.
 */
#define _GNU_SOURCE /* the registers of a signal's context */
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <ucontext.h>

#include "tiles.h"

static const int REGISTERS[16] = {
    REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
    REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
};

/* One instruction with a three-byte VEX prefix: C4, RXBm'mmmm, WvvvvLpp, opcode, ModRM. */
typedef struct {
    int code; /* pp and opcode */
    int in_memory, reg, rm, vvvv;
    long address, stride; /* SIB: the index is the stride of a tile's rows */
    const uint8_t *end;
} instruction;

enum { NONE = 0x000, X66 = 0x100, XF3 = 0x200, XF2 = 0x300 };

static int32_t displacement(const uint8_t *at)
{
    int32_t bytes;
    memcpy(&bytes, at, sizeof bytes);
    return bytes;
}

static void read_address(instruction *to, const uint8_t prefix, int mod, const greg_t *registers)
{
    const int high_base = prefix & 0x20 ? 0 : 8, high_index = prefix & 0x40 ? 0 : 8;
    const uint8_t *at = to->end;
    int base = to->rm;
    if (to->rm == 4) {
        const int index = (*at >> 3 & 7) | high_index;
        if (index != 4) to->stride = registers[REGISTERS[index]] << (*at >> 6);
        base = *at++ & 7;
    }
    const int no_base = mod == 0 && base == 5;
    if (no_base || mod == 2) {
        to->address = displacement(at);
        at += 4;
    } else if (mod == 1) to->address = (int8_t)*at++;
    if (!no_base) to->address += registers[REGISTERS[base | high_base]];
    else if (to->rm == 5) to->address += (long)at; /* of the next instruction */
    to->end = at;
}

static int read_instruction(instruction *to, const uint8_t *at, const greg_t *registers)
{
    if (at[0] != 0xc4 || (at[1] & 31) != 2) return 0;
    const int mod = at[4] >> 6;
    *to = (instruction){.code = (at[2] & 3) << 8 | at[3],
                        .in_memory = mod != 3,
                        .reg = at[4] >> 3 & 7,
                        .rm = at[4] & 7,
                        .vvvv = 15 - (at[2] >> 3 & 15),
                        .end = at + 5};
    if (to->in_memory) read_address(to, at[1], mod, registers);
    return 1;
}

/* 0 for what is not of the unit, or what the kernels do not use. */
static int execute(const instruction *at)
{
    void *memory = (void *)at->address;
    if (at->in_memory) switch (at->code) {
        case NONE | 0x49: tile_configure(memory); return 1;                 /* LDTILECFG */
        case XF2 | 0x4b:                                                    /* TILELOADD */
        case X66 | 0x4b: tile_load(at->reg, memory, at->stride); return 1;  /* TILELOADDT1 */
        case XF3 | 0x4b: tile_store(at->reg, memory, at->stride); return 1; /* TILESTORED */
        default: return 0;
        }
    switch (at->code) {
    case NONE | 0x49: tile_release(); return 1;                                  /* TILERELEASE */
    case XF2 | 0x49: tile_zero(at->reg); return 1;                               /* TILEZERO */
    case XF3 | 0x5c: tile_multiply_bfloats(at->reg, at->rm, at->vvvv); return 1; /* TDPBF16PS */
    case XF2 | 0x5e: tile_multiply_bytes(at->reg, at->rm, at->vvvv); return 1;   /* TDPBSSD */
    default: return 0;
    }
}

/* A signal takes longer than a product of tiles, so what follows is done with it. */
static void do_instructions(int number, siginfo_t *info, void *context)
{
    greg_t *registers = ((ucontext_t *)context)->uc_mcontext.gregs;
    instruction at;
    int done = 0;
    (void)info;
    while (read_instruction(&at, (const uint8_t *)registers[REG_RIP], registers) && execute(&at)) {
        registers[REG_RIP] = (greg_t)at.end;
        done = 1;
    }
    if (!done) signal(number, SIG_DFL); /* comes again, and ends the program */
}

const char *__wrap_fa_cpu_lacks_amx(void);
int __wrap_fa_cpu_permits_amx(void);

const char *__wrap_fa_cpu_lacks_amx(void)
{
    if (!__builtin_cpu_supports("avx512vbmi")) return "the CPU has no AVX512-VBMI";
    return __builtin_cpu_supports("gfni") ? NULL : "the CPU has no GFNI";
}

int __wrap_fa_cpu_permits_amx(void)
{
    struct sigaction action = {.sa_sigaction = do_instructions, .sa_flags = SA_SIGINFO};
    return !sigaction(SIGILL, &action, NULL);
}
