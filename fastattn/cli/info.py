# SPDX-License-Identifier: MIT
"""``info``: CPU, caches, instruction sets, threads and build."""

import json


def add(subparsers):
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "info",
        help="CPU, caches, instruction sets, threads, build",
        description="Show the CPU, its caches, the instruction set that is used and the ones that "
        "are available, the number of threads, and how this package was built.",
    )
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.set_defaults(run=run)


def run(options):
    """Print; return 0."""
    import fastattn

    if options.json:
        print(json.dumps(fastattn.config(), indent=1))
    else:
        fastattn.show_config()
    return 0
