# SPDX-License-Identifier: MIT
"""Measuring attention honestly: interleaved timing, peers, the limits of the machine, tables.

Nothing here is imported by ``import fastattn``. The command line (``python -m fastattn bench``) and
``bench/`` in the source tree are built on it::

    problems  what is computed, and how many operations and bytes it takes; inputs: its arrays
    suites    named lists of problems
    peers     other libraries behind one interface; masking: what forbids, in the forms they take
    checking  results against the oracle, before the clock
    limits    what the machine could do: FMA peak, read bandwidth, exponentials
    timing    several callables in one interleaved run
    runner    one problem: every peer and the limits, side by side
    table     rows as text, Markdown, JSON and CSV
    compare   two runs: what became slower
    pictures  what was measured, drawn; sweeps: what only they show
    profile   stages of one call, from the instrumented build; timeline: drawn
"""
