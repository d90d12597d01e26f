# SPDX-License-Identifier: MIT
"""Measuring attention honestly: interleaved timing, peers, the limits of the machine, tables.

Nothing here is imported by ``import fastattn``. The command line (``python -m fastattn bench``) and
``bench/`` in the source tree are built on it::

    problems  what is computed, and how many operations it takes
    peers     other libraries behind one interface, checked before they are timed
    limits    what the machine could do: FMA peak, read bandwidth
    timing    several callables in one interleaved run
    runner    one problem: every peer and the limit, side by side
    table     rows as text, Markdown and JSON
"""
