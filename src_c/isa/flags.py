# SPDX-License-Identifier: MIT
"""Each instruction set with its machine and its own compiler flags.

setup.py, tests/c/build.sh and tests/test_hygiene.py read it, so that what is looked at is compiled
as what is shipped. Run with the name of a machine, it prints the instruction sets of that machine,
a line each: the name, then the flags of GCC and Clang.
"""

import sys

AVX512 = ["-mfma", "-mf16c", "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl"]
AVX512 += ["-mprefer-vector-width=512"]
DOTS = ["-mavx512vbmi", "-mavx512vnni", "-mavx512bf16"]
AMX = ["-mavx512vbmi", "-mgfni", "-mamx-tile", "-mamx-bf16", "-mamx-int8"]
#   ISA       machine   GCC and Clang, MSVC
ISAS = {
    "scalar": ("any", ["-fno-tree-vectorize", "-fno-tree-slp-vectorize"], []),
    "avx2": ("x86_64", ["-mavx2", "-mfma", "-mf16c"], ["/arch:AVX2"]),
    "avx512": ("x86_64", AVX512, ["/arch:AVX512"]),
    "avx512_bf16": ("x86_64", [*AVX512, *DOTS], []),
    "amx": ("x86_64", [*AVX512, *AMX], []),
    "neon": ("aarch64", [], []),
    "neon_bf16": ("aarch64", ["-march=armv8.2-a+bf16"], []),
}

if __name__ == "__main__":
    for name, (machine, flags, _) in ISAS.items():
        if machine in ("any", sys.argv[1]):
            print(name, *flags)
