# SPDX-License-Identifier: MIT
"""The command line: ``python -m fastattn {info,check,bench,profile,demo,run}``."""

import sys

from fastattn.cli import main

if __name__ == "__main__":
    sys.exit(main())
