# SPDX-License-Identifier: MIT
"""Tests of what the C core will do later wait for it."""

import pytest

from fastattn.cli.random_storage import can


def needs(*abilities):
    """Return a mark that skips a test until the core has all of these."""
    missing = [each for each in abilities if not can(each)]
    return pytest.mark.skipif(bool(missing), reason=f"the core has no {', '.join(missing)} yet")
