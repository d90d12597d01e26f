# SPDX-License-Identifier: MIT
"""What validation makes of a valid call: views in logical order and normalised options."""

import sys
import weakref

import numpy as np
import pytest
from error_cases import F32, OUT_SHAPE, K, Q, V, zeros

from fastattn import _check


def test_tensors_are_views_with_one_leading_shape():
    k, v = zeros(3, 1, 1, 32, 64), zeros(32, 48)
    p = _check.problem(Q, k, v, return_lse=True)
    assert p.q.shape == (3, 2, 8, 16, 64) and p.k.shape == (3, 2, 1, 32, 64)
    assert p.v.shape == (3, 2, 1, 32, 48) and p.out.shape == (3, 2, 8, 16, 48)
    assert p.lse.shape == (3, 2, 8, 16) and p.lse_result is p.lse
    for view, tensor in (p.q, Q), (p.k, k), (p.v, v):
        assert np.shares_memory(view, tensor)
    assert p.q.strides[0] == p.k.strides[1] == p.v.strides[0] == 0


def test_key_and_value_heads_broadcast_to_each_other():
    p = _check.problem(Q, K[:, :1], zeros(2, 4, 32, 48))
    assert p.k.shape[1] == p.v.shape[1] == 4 and p.k.strides[1] == 0
    assert _check.problem(Q, K, V[:, :1]).v.shape[1] == 2


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_layouts_become_views_with_heads_first(layout):
    tensors = [t.swapaxes(1, 2).copy() if layout == "bshd" else t for t in (Q, K, V)]
    given = zeros(2, 16, 8, 48) if layout == "bshd" else zeros(*OUT_SHAPE)
    for out in None, given:
        p = _check.problem(*tensors, layout=layout, out=out)
        assert (p.q.shape, p.k.shape, p.v.shape) == (Q.shape, K.shape, V.shape)
        assert p.out.shape == OUT_SHAPE and p.result.shape == given.shape
        assert np.shares_memory(p.out, p.result) and p.result.flags.c_contiguous
        assert out is None or p.result is out


def test_rank_2():
    out = zeros(16, 48)
    for layout in "bhsd", "bshd":
        p = _check.problem(Q[0, 0], K[0, 0], V[0, 0], out=out, return_lse=True, layout=layout)
        assert p.q.shape == (1, 16, 64) and p.out.shape == (1, 16, 48) and p.lse.shape == (1, 16)
        assert p.result is out and p.lse_result.shape == (16,)
        assert np.shares_memory(p.out, out) and np.shares_memory(p.lse, p.lse_result)
        assert p.kv_end.tolist() == [32]
    assert _check.problem(Q[0, 0], K[0, 0], V[0, 0]).result.shape == (16, 48)
    p = _check.problem(Q[0, 0], K[:, :1], V[:, :1], return_lse=True)
    assert p.result.shape == (2, 16, 48) and p.lse_result.shape == (2, 16)


def test_result_follows_the_memory_order_of_q():
    p = _check.problem(zeros(2, 16, 8, 64).swapaxes(1, 2), K, V)
    assert p.result.shape == OUT_SHAPE and p.result.swapaxes(1, 2).flags.c_contiguous
    p = _check.problem(zeros(16, 8, 64, 2).transpose(3, 1, 0, 2)[:, :, ::-1], K, V)
    assert p.result.transpose(2, 1, 0, 3).flags.c_contiguous  # the last axis is innermost always
    p = _check.problem(np.broadcast_to(zeros(1, 16, 8, 64).swapaxes(1, 2), Q.shape), K, V)
    assert p.result.swapaxes(1, 2).flags.c_contiguous
    p = _check.problem(zeros(1, 16, 8, 64).swapaxes(1, 2), K, V)
    assert p.result.shape == OUT_SHAPE and p.result.swapaxes(1, 2).flags.c_contiguous


def test_options_are_normalised():
    p = _check.problem(Q, K, V)
    assert (p.scale, p.softcap, p.causal, p.left, p.right) == (0.125, 0.0, False, -1, -1)
    assert p.mask is p.alibi is p.sinks is p.lse is p.num_threads is None
    assert p.q_offset.tolist() == [16, 16] and p.kv_begin.tolist() == [0, 0]
    p = _check.problem(
        Q, K, V, attn_mask=zeros(1, 32, dtype=bool), causal=np.True_, window_size=[3, None],
        scale=np.float32(2), softcap=5, alibi_slopes=[0.5] * 8, sinks=zeros(8) - np.inf,
        kv_lengths=np.array([20, 4], np.uint8), kv_starts=[0, 9], num_threads=np.int32(3),
    )  # fmt: skip
    assert p.mask.shape == (2, 8, 16, 32) and p.mask.strides == (0, 0, 0, 1)
    assert p.causal is True and (p.left, p.right, p.scale, p.softcap) == (3, -1, 2.0, 5.0)
    assert p.alibi.shape == (2, 8) and p.sinks.shape == (8,) and p.num_threads == 3
    assert p.alibi.dtype == p.sinks.dtype == np.float64
    assert p.q_offset.tolist() == [4, -12] and p.kv_end.tolist() == [20, 4]
    assert p.kv_begin.tolist() == [0, 9]
    for positions in p.q_offset, p.kv_begin, p.kv_end:
        assert positions.dtype == np.int64 and positions.flags.c_contiguous
    assert _check.problem(Q, K, V, window_size=(sys.maxsize, 2**54)).left == -1


def test_lengths_are_copies():
    """A thread that changes the array after the check must not get a kernel to read past k."""
    lengths = np.array([20, 4])
    p = _check.problem(Q, K, V, kv_lengths=lengths)
    assert not np.shares_memory(p.kv_end, lengths)


@pytest.mark.parametrize("batch", [_check.options.FEW, _check.options.FEW + 1])
def test_the_range_of_lengths_is_checked_however_many_there_are(batch):
    """Python looks for the smallest and the largest of a few, NumPy of more."""
    q, k = zeros(batch, 1, 1, 1), zeros(batch, 1, 5, 1)
    given = np.arange(batch, dtype=np.int16) % 6
    p = _check.problem(q, k, k, kv_lengths=given, kv_starts=given[::-1])
    assert p.kv_end.tolist() == given.tolist() and p.kv_begin.tolist() == given[::-1].tolist()
    for name in "kv_lengths", "kv_starts":
        for wrong in -1, 6:
            given[-1] = wrong
            with pytest.raises(ValueError) as caught:
                _check.problem(q, k, k, **{name: given})
            assert str(caught.value) == f"{name}: expected values from 0 to 5, got {wrong}"


def test_listed_integers_without_a_common_type():
    """NumPy makes float64 of them."""
    for listed in [np.uint64(3), 1], [np.uint64(3), np.int64(1)]:
        found = _check.options.integers("n", listed, "integers")
        assert found.dtype == np.int64 and found.tolist() == [3, 1]
    assert _check.options.integers("n", [2**63, 1], "integers").tolist() == [2**63, 1]


def test_integers_beyond_64_bits_are_numbers():
    p = _check.problem(Q, K, V, alibi_slopes=[10**30, *[0.5] * 7], k_scale=[10**30, 1])
    assert p.alibi[0, 0] == 1e30 and p.k_scale[0, 0, 0] == np.float32(1e30)


def test_positions_of_small_batches_alone_are_kept():
    """Those of a million sequences would take memory until the process ends."""
    assert _check.problem(Q, K, V).kv_end is _check.problem(Q, K, V).kv_end
    many = zeros(5000, 1, 1, 1)
    p = _check.problem(many, many, many, causal=True)
    assert p.kv_begin.shape == p.q_offset.shape == (5000,) and set(p.kv_end.tolist()) == {1}
    for each in p.q_offset, p.kv_begin, p.kv_end:
        assert not each.flags.writeable  # kept ones are made alike, and calls share them
    positions = [weakref.ref(each) for each in (p.q_offset, p.kv_begin, p.kv_end)]
    del p, each
    assert all(each() is None for each in positions)


@pytest.mark.parametrize("rank", range(6))
def test_mask_ranks(rank):
    mask = zeros(*[1] * rank)
    assert _check.problem(Q[None], K, V, attn_mask=mask).mask.shape == (1, 2, 8, 16, 32)
    if rank < 5:
        assert _check.problem(Q[0], K[0], V[0], attn_mask=mask).mask.shape == (8, 16, 32)


def test_mask_may_be_a_numpy_scalar():
    assert _check.problem(Q, K, V, attn_mask=np.float32(-np.inf)).mask.shape == (2, 8, 16, 32)


def test_empty_sizes():
    assert _check.problem(Q[:0], K[:0], V[:0], kv_lengths=zeros(0, dtype=int)).q_offset.size == 0
    assert _check.problem(Q[:, :, :0], K, V, out=zeros(2, 8, 0, 48)).out.size == 0
    assert _check.problem(Q, K[:, :, :0], V[:, :, :0], kv_lengths=0).kv_end.tolist() == [0, 0]


def test_subclass_and_unusual_dtype_objects_are_fine():
    dtype = np.dtype(F32, metadata={"unit": "none"})
    p = _check.problem(Q.astype(dtype).view(np.recarray), K.astype(dtype), V)
    assert type(p.q) is np.ndarray
    wide = np.dtype(np.float64, metadata={"unit": "none"})
    p = _check.problem(*(t.astype(wide) for t in (Q, K, V)), attn_mask=zeros(32, dtype=np.float64))
    assert p.out.dtype == p.mask.dtype == np.float64


def test_weights_problem():
    p = _check.weights_problem(Q, K, causal=True)
    assert p.out.shape == p.result.shape == (2, 8, 16, 32) and p.v is None and p.lse is None
    assert _check.weights_problem(Q[0, 0], K[0, 0]).result.shape == (16, 32)


def test_merge_problem():
    outs, lses = zeros(3, 2, 8, 16, 48), zeros(3, 2, 8, 16)
    p = _check.merge_problem(outs, lses)
    assert (
        len(p.outs) == len(p.lses) == 3 and p.out.shape == OUT_SHAPE and p.lse.shape == (2, 8, 16)
    )
    out = zeros(*OUT_SHAPE)
    assert _check.merge_problem(tuple(outs), list(lses), out).out is out


def test_sdpa_arguments():
    q, k, v, keywords = _check.sdpa_arguments(Q[:, :1], zeros(2, 8, 32, 64), V[:, :1], scale=2.0)
    assert q.shape == Q.shape and keywords["q_offset"] == 0 and keywords["scale"] == 2.0
    q, k, v, keywords = _check.sdpa_arguments(Q[0, 0], K[0, 0], V[0, 0], is_causal=True)
    assert q.shape == (16, 64) and keywords["causal"] is True
    q, k, v, _ = _check.sdpa_arguments(Q[0, 0], zeros(3, 32, 64), zeros(3, 32, 48))
    assert _check.problem(q, k, v).result.shape == (3, 16, 48)
    q, k, v, _ = _check.sdpa_arguments(Q, K, V, enable_gqa=True)
    assert q is Q
    given = [t.view(np.recarray) for t in (Q, K, V)]  # as arrays of any other type
    found = _check.sdpa_arguments(*given, enable_gqa=True)[:3]
    for array, tensor in zip(found, (Q, K, V), strict=True):
        assert type(array) is np.ndarray and np.shares_memory(array, tensor)


def test_sdpa_heads_are_repeated_to_a_common_number():
    """Torch lets those of keys and of values each divide the queries' by itself."""
    k, v = (np.arange(heads, dtype=F32).reshape(1, heads, 1, 1) for heads in (4, 6))
    q, k, v, _ = _check.sdpa_arguments(zeros(1, 12, 1, 1), k, v, enable_gqa=True)
    assert q.shape == (1, 12, 1, 1)
    assert k.ravel().tolist() == [n // 3 for n in range(12)]
    assert v.ravel().tolist() == [n // 2 for n in range(12)]
