# SPDX-License-Identifier: MIT
"""The limits of this machine: FMA peak per ISA, read bandwidth, exponentials.

    python bench/machine.py [--threads N] [--json FILE]

They come from loops in C that do nothing else. They are what the figures of the other benches are
shares of; those measure the peak anew within their own run.
"""

import argparse
import datetime
import json
import platform
import re
from pathlib import Path

from arguments import refused_by

import fastattn
from fastattn.cli import arguments as checks
from fastattn.measure import limits, table


def facts():
    """Return what identifies this machine and this build."""
    config = fastattn.config()
    return config | {
        "system": f"{platform.system()} {platform.machine()}",
        "date": datetime.datetime.now().astimezone().isoformat(timespec="seconds"),
        "load": list(load()),
        "meters": limits.METERS,
    }


def load():
    """Return the load averages (1, 5, 15 minutes): other work on this machine."""
    try:
        first, second, third = Path("/proc/loadavg").read_text().split()[:3]
    except (OSError, ValueError):
        return ()
    return float(first), float(second), float(third)


def slug(cpu):
    """Return the CPU's name as part of a file name."""
    words = re.sub(r"\((r|tm)\)|cpu|processor|@.*", " ", cpu.lower())
    return "-".join(re.findall(r"[a-z0-9]+", words)) or "unknown"


def heading(known):
    """Return the line that a table of results starts with."""
    return (
        f"{known['cpu']}, {table.count_text(known['threads'], 'thread')}, ISA {known['isa']}, "
        f"fastattn {known['version']}, {known['date'][:10]}"
    )


def main(arguments=None):
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, help="of the limits (default: what info says)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures here")
    options = parser.parse_args(arguments)
    with refused_by(parser):
        threads = checks.threads_of(options)
        if options.json:
            checks.check_output(options.json)
    known = facts()
    fastattn.show_config()
    measured = limits.machine(threads)
    for title, cells in table.limits(measured).items():
        print()
        table.show(*cells, title=title)
    if options.json:
        options.json.write_text(json.dumps(known | measured, indent=1) + "\n")


if __name__ == "__main__":
    main()
