# SPDX-License-Identifier: MIT
"""schedule.c: pure integers, compared with enumeration."""

import hypothesis.strategies as st
from hypothesis import given, settings

from fastattn import _kernels

POSITIONS = st.fixed_dictionaries(
    {
        "offset": st.integers(-40, 40),
        "begin": st.integers(0, 30),
        "end": st.integers(0, 60),
        "left": st.integers(-1, 30),
        "right": st.integers(-1, 30),
    }
)


def seen(query, offset, begin, end, left, right):
    """The keys of one query, from the definition."""
    p = query + offset
    return {
        j
        for j in range(begin, end)
        if (left < 0 or j >= p - left) and (right < 0 or j <= p + right)
    }


@settings(max_examples=300, deadline=None)
@given(positions=POSITIONS, query=st.integers(0, 60))
def test_allowed(positions, query):
    begin, end = _kernels.allowed(query, **positions)
    assert set(range(begin, end)) == seen(query, **positions)


@settings(max_examples=300, deadline=None)
@given(positions=POSITIONS, first=st.integers(0, 60), count=st.integers(1, 20))
def test_span(positions, first, count):
    sets = [seen(query, **positions) for query in range(first, first + count)]
    begin, end, full_begin, full_end = _kernels.span(first, first + count, **positions)
    assert set.union(*sets) <= set(range(begin, end))
    assert set(range(full_begin, full_end)) == set.intersection(*sets)


@settings(max_examples=500, deadline=None)
@given(
    positions=POSITIONS,
    first=st.integers(0, 60),
    count=st.integers(1, 20),
    reach=st.integers(0, 30),
)
def test_reach(positions, first, count, reach):
    """Nothing is left out that one query needs, and the first and the last key are needed."""
    needed = set()
    for query in range(first, first + count):
        keys, p = seen(query, **positions), query + positions["offset"]
        nearest = min((abs(p - j) for j in keys), default=0)
        needed |= {j for j in keys if abs(p - j) <= nearest + reach}
    begin, end, *_ = _kernels.span(first, first + count, reach, **positions)
    assert needed <= set(range(begin, end))
    if needed:
        assert min(needed) == begin and max(needed) == end - 1


def test_far_positions_do_not_overflow():
    assert _kernels.allowed(5, offset=2**53, begin=0, end=9, left=-1, right=2**54) == (0, 9)
    begin, end = _kernels.allowed(5, offset=-(2**53), begin=0, end=9, left=-1, right=0)
    assert end <= begin


@settings(max_examples=300, deadline=None)
@given(
    rows=st.integers(1, 500),
    lanes=st.sampled_from([1, 2, 4, 8, 16]),
    vectors=st.integers(1, 4),
    group=st.sampled_from([0, 64, 192]),
    apart=st.integers(0, 16),
)
def test_tiling(rows, lanes, vectors, group, apart):
    apart = 0 if group else min(apart, lanes, rows - 1)
    tiles = _kernels.tiling(rows, lanes, vectors, group, apart)
    if apart:
        assert tiles.pop() == (rows - apart, apart, 1)
        rows -= apart
    expected = 0
    for begin, count, used in tiles:
        assert begin == expected and count >= 1
        assert 1 <= used <= vectors and (used - 1) * lanes < count <= used * lanes
        assert not group or begin // group == (begin + count - 1) // group
        expected += count
    assert expected == rows
    if not group:
        assert max(t[2] for t in tiles) - min(t[2] for t in tiles) <= 1
