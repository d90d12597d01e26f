#!/usr/bin/env bash
# Build the C library with another compiler and run check_kernels on it.
#   build.sh COMPILER [EMULATOR [ISA ...]]  e.g. aarch64-linux-gnu-gcc "qemu-aarch64 -L /usr/aarch64-linux-gnu"
#                                           ISA: with these alone, not with all that it knows
#   build.sh simde                          this machine's gcc, AVX-512 and AMX emulated in portable C
set -euo pipefail
cd "$(dirname "$0")/../.."
compiler=${1:?compiler or simde}
emulator=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
flags=(-std=c11 -O2 -ffp-contract=off -Wall -Wextra -Isrc_c -pthread -DFA_HAVE_THREADS)
sources=()
for source in src_c/*.c; do # cpu.c: below
    [[ $source == src_c/cpu.c || $source == src_c/profile.c || $source == src_c/xla_* ]] || sources+=("$source")
done
isas=(scalar)
case $compiler in
simde)
    compiler=gcc
    isas+=(avx512 avx512_bf16 amx)
    sources+=(tests/c/simde/cpu.c)
    avx512=(-std=gnu11 -O1 -DFA_EMULATED -isystem tests/c/simde -mavx2 -mfma -mf16c -Wno-psabi)
    avx512_bf16=("${avx512[@]}")
    amx=("${avx512[@]}")
    ;;
*)
    sources+=(src_c/cpu.c)
    case $("$compiler" -dumpmachine) in
    aarch64*) isas+=(neon neon_bf16) ;;
    x86_64*) isas+=(avx2 avx512 avx512_bf16 amx) ;;
    esac
    avx2=(-mavx2 -mfma -mf16c)
    avx512=(-mfma -mf16c -mavx512f -mavx512bw -mavx512dq -mavx512vl)
    avx512_bf16=("${avx512[@]}" -mavx512vbmi -mavx512vnni -mavx512bf16)
    amx=("${avx512[@]}" -mavx512vbmi -mgfni -mamx-tile -mamx-bf16 -mamx-int8)
    neon_bf16=(-march=armv8.2-a+bf16)
    ;;
esac
if (($# > 2)); then isas=("${@:3}"); fi
jobs=()
for isa in "${isas[@]}"; do
    flags+=("-DFA_HAVE_${isa^^}")
    declare -n own=$isa 2>/dev/null || true
    for bits in 32 64; do
        [[ $isa == @(avx512_bf16|amx|neon_bf16) && $bits == 64 ]] && continue # what is below has it
        "$compiler" "${flags[@]}" ${own[@]+"${own[@]}"} -DFA_REAL_BITS=$bits \
            -c "src_c/isa/$isa.c" -o "$work/$isa$bits.o" &
        jobs+=($!)
    done
done
failed=0
for job in "${jobs[@]}"; do wait "$job" || failed=1; done
((!failed))
"$compiler" "${flags[@]}" "${sources[@]}" tests/c/check_kernels.c "$work"/*.o -lm -o "$work/check"
$emulator "$work/check"
