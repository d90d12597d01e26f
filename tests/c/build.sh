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
[[ $compiler == simde ]] && machine=x86_64 || machine=$("$compiler" -dumpmachine)
table=$(python3 src_c/isa/flags.py "${machine%%-*}")
declare -A own # flags
while read -r isa words; do own[$isa]=$words; done <<<"$table"
if [[ $compiler == simde ]]; then
    compiler=gcc
    isas=(scalar avx512 avx512_bf16 amx)
    sources+=(tests/c/simde/cpu.c)
    # GCC 12 loses the first pair of fp8 values in one of its passes, at -O1 alone.
    portable="-std=gnu11 -O1 -fno-tree-forwprop -DFA_EMULATED -isystem tests/c/simde -mavx2 -mfma -mf16c -Wno-psabi"
    for isa in "${isas[@]:1}"; do own[$isa]=$portable; done
else
    sources+=(src_c/cpu.c)
    mapfile -t isas < <(cut -d " " -f 1 <<<"$table")
fi
if (($# > 2)); then isas=("${@:3}"); fi
jobs=()
for isa in "${isas[@]}"; do
    flags+=("-DFA_HAVE_${isa^^}")
    for bits in 32 64; do
        [[ $isa == @(avx512_bf16|amx|neon_bf16) && $bits == 64 ]] && continue # what is below has it
        # shellcheck disable=SC2086 # a list of words
        "$compiler" "${flags[@]}" ${own[$isa]} -DFA_REAL_BITS=$bits \
            -c "src_c/isa/$isa.c" -o "$work/$isa$bits.o" &
        jobs+=($!)
    done
done
failed=0
for job in "${jobs[@]}"; do wait "$job" || failed=1; done
((!failed))
"$compiler" "${flags[@]}" "${sources[@]}" tests/c/check_kernels.c "$work"/*.o -lm -o "$work/check"
$emulator "$work/check"
