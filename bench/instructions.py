# SPDX-License-Identifier: MIT
"""Instructions of single calls, counted by valgrind: regressions show on a machine however busy.

    python bench/instructions.py --json now.json
    python bench/instructions.py --compare then.json [--fail-above 1.02]

Needs valgrind and a C compiler. A count says nothing about caches and stalls: it finds code that
became more, not code that became slower. Compare builds of one and the same compiler only.
valgrind knows no AVX-512, so scalar and AVX2 are counted. Exit code 1 if a count grew.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from arguments import refused_by

import fastattn
from fastattn.cli import arguments as checks
from fastattn.measure import table

ISAS = ("scalar", "avx2")
#         name            Hq Hkv  Sq   Sk   D  causal
CASES = {
    "full 2x128x64": (2, 2, 128, 128, 64, 0),
    "causal 2x128x64": (2, 2, 128, 128, 64, 1),
    "full 2x128x128": (2, 2, 128, 128, 128, 0),
    "tiny 12x16x64": (12, 12, 16, 16, 64, 0),
    "decode 8/2x1:512x128": (8, 2, 1, 512, 128, 0),
}


def build(folder):
    """Compile the program against the installed library; return its path."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None or shutil.which("valgrind") is None:
        raise SystemExit("instructions.py: expected valgrind and a C compiler on the path")
    library, target = Path(fastattn.get_library()), Path(folder, "instructions")
    source = Path(__file__).with_suffix(".c")
    command = [compiler, "-std=c11", "-O1", source, f"-I{fastattn.get_include()}", library]
    subprocess.run([*command, f"-Wl,-rpath,{library.parent}", "-o", target], check=True)
    return target


def collected(text):
    """Return the number of instructions that callgrind reports at its end."""
    found = re.search(r"Collected : (\d+)", text)
    if found is None:
        raise ValueError(f"no count in what valgrind says: {text[-300:]!r}")
    return int(found[1])


def count(program, isa, sizes):
    """Return the instructions within fa_attention of one call."""
    command = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command += ["--toggle-collect=fa_attention", program, isa, *map(str, sizes)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return collected(done.stderr)


def read(path):
    """Return the counts of an earlier run; raise UsageError if there are none."""
    try:
        with checks.file_errors(path):
            counts = json.loads(path.read_text())
        grown(counts, counts, 1.0)
    except (ValueError, TypeError, ZeroDivisionError):
        raise checks.UsageError(f"{path}: no counts of instructions.py --json") from None
    return counts


def grown(old, new, fail_above):
    """Return {name: ratio} of the counts that grew beyond the ratio."""
    ratios = {name: new[name] / old[name] for name in old if name in new}
    return {name: ratio for name, ratio in ratios.items() if ratio > fail_above}


def main(arguments=None):
    """Count, print, write, compare; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the counts here")
    parser.add_argument("--compare", type=Path, metavar="FILE", help="with these counts")
    parser.add_argument("--fail-above", type=float, default=1.02, help="ratio (%(default)s)")
    options = parser.parse_args(arguments)
    with refused_by(parser):
        if options.json:
            checks.check_output(options.json)
        old = read(options.compare) if options.compare else {}
    counts = {}
    with tempfile.TemporaryDirectory() as folder:
        program = build(folder)
        for isa in [name for name in ISAS if name in fastattn.isas()]:
            for name, sizes in CASES.items():
                counts[f"{name} {isa}"] = count(program, isa, sizes)
    lines = [
        [name, f"{value:,}", f"{value / old[name]:.4f}" if name in old else table.NOTHING]
        for name, value in counts.items()
    ]
    table.show(["case", "instructions", "now / then"], lines)
    if options.json:
        options.json.write_text(json.dumps(counts, indent=1) + "\n")
    worse = grown(old, counts, options.fail_above)
    for name, ratio in worse.items():
        print(f"{name}: {ratio:.3f} times as many instructions as before", file=sys.stderr)
    return 1 if worse else 0


if __name__ == "__main__":
    sys.exit(main())
