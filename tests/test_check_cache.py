# SPDX-License-Identifier: MIT
"""What validation makes of valid calls with pages, scales, 16-bit types and packed sequences."""

import numpy as np
import pytest
from cases import dtype_of
from error_cases import F32, OUT_SHAPE, K, Q, V, zeros
from error_cases_cache import FIVE, PAGED, PAGES, PAGES_V, TABLE, VARLEN, VARLEN_PAGED, entry

from fastattn import _check

pytestmark = pytest.mark.forces_isa

# ---- dtypes --------------------------------------------------------------------------------------

PAIRS = [
    ("float64", "float64"),
    *(("float32", kv) for kv in ("float32", "float16", "bfloat16", "int8", "float8_e4m3fn")),
    *(("float16", kv) for kv in ("float16", "int8", "float8_e5m2")),
    *(("bfloat16", kv) for kv in ("bfloat16", "int8", "float8_e4m3fn")),
]


@pytest.mark.parametrize("of_q, of_kv", PAIRS)
def test_dtypes(of_q, of_kv):
    of_q, of_kv = dtype_of(of_q), dtype_of(of_kv)
    q, k, v = Q.astype(of_q), K.astype(of_kv), V.astype(of_kv)
    p = _check.problem(q, k, v, return_lse=True)
    for view, tensor in (p.q, q), (p.k, k), (p.v, v):
        assert view.dtype is tensor.dtype and np.shares_memory(view, tensor)
    assert p.out.dtype == p.result.dtype == of_q
    assert p.lse.dtype == (np.float64 if of_q == np.float64 else F32)
    out = np.empty(OUT_SHAPE, of_q)
    assert _check.problem(q, k, v, out=out).result is out
    assert _check.weights_problem(q, k).out.dtype == of_q
    for dtype in bool, F32, of_q:
        mask = np.zeros(32, dtype)
        view = _check.problem(q, k, v, attn_mask=mask).mask
        assert view.dtype == dtype and np.shares_memory(view, mask)


def test_merge_of_16_bit_states():
    outs, lses = [zeros(5, 3, dtype=np.float16)] * 2, [zeros(5)] * 2
    p = _check.merge_problem(outs, lses)
    assert p.out.dtype == np.float16 and p.lse.dtype == F32
    bfloat16 = dtype_of("bfloat16")
    outs = [each.astype(bfloat16) for each in outs]
    assert _check.merge_problem(outs, lses).out.dtype == bfloat16


# ---- pages ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_pages_stay_where_they_lie(layout):
    tensors = [t.swapaxes(1, 2).copy() if layout == "bshd" else t for t in (Q, PAGES, PAGES_V)]
    mask = zeros(24, dtype=bool)
    p = _check.problem(
        *tensors, block_table=TABLE, layout=layout, attn_mask=mask, causal=True, return_lse=True
    )
    assert (p.q.shape, p.k.shape, p.v.shape) == (Q.shape, (6, 2, 8, 64), (6, 2, 8, 48))
    for view, tensor in zip((p.q, p.k, p.v), tensors, strict=True):
        assert np.shares_memory(view, tensor)
    assert p.block_table.dtype == np.int32 and p.block_table.flags.c_contiguous
    assert p.block_table.tolist() == TABLE.tolist()
    assert p.mask.shape == (2, 8, 16, 24) and p.mask.strides == (0, 0, 0, 1)
    assert p.kv_end.tolist() == [24, 24] and p.q_offset.tolist() == [8, 8]
    assert p.out.shape == OUT_SHAPE and p.lse.shape == (2, 8, 16) and p.result.flags.c_contiguous


def test_pages_of_one_head():
    p = _check.problem(**{**PAGED, "k": PAGES[:, :1]})
    assert p.k.shape == (6, 2, 8, 64) and p.k.strides[1] == 0 and p.v.strides[1] > 0
    p = _check.problem(**{**PAGED, "v": PAGES_V[:, :1]})
    assert p.v.shape == (6, 2, 8, 48) and p.v.strides[1] == 0


@pytest.mark.parametrize("dtype", [np.int8, np.uint16, np.int32, np.int64, np.uint64, list])
def test_table_dtypes(dtype):
    table = TABLE.tolist() if dtype is list else TABLE.astype(dtype)
    p = _check.problem(**{**PAGED, "block_table": table})
    assert p.block_table.dtype == np.int32 and p.block_table.tolist() == TABLE.tolist()


def test_unused_entries_may_be_anything():
    table = entry(0, 0, -1)
    table[0, 2], table[1, 1], table[1, 2] = 2**40, -7, 99
    lengths, starts = [16, 8], [8, 0]
    given = {**PAGED, "block_table": table, "kv_lengths": lengths, "kv_starts": starts}
    p = _check.problem(**given)
    assert p.block_table.tolist() == [[0, 1, 0], [3, 0, 0]]
    table[:] = -1
    for empty in {"kv_lengths": 0}, {"kv_starts": 24}, {"kv_starts": 9, "kv_lengths": 9}:
        assert not _check.problem(**{**PAGED, "block_table": table, **empty}).block_table.any()
    p = _check.problem(Q, PAGES[:0], PAGES_V[:0], block_table=table, kv_lengths=0)
    assert p.k.shape == (0, 2, 8, 64)


def test_table_is_a_copy():
    table = TABLE.astype(np.int32)
    assert not np.shares_memory(
        _check.problem(**{**PAGED, "block_table": table}).block_table, table
    )


def test_tables_without_blocks_or_sequences():
    p = _check.problem(**{**PAGED, "block_table": TABLE[:, :0]}, attn_mask=zeros(16, 0))
    assert p.block_table.shape == (2, 0) and p.kv_end.tolist() == [0, 0]
    p = _check.problem(Q[:0], PAGES, PAGES_V, block_table=TABLE[:0])
    assert p.block_table.shape == (0, 3) and p.result.shape == (0, *OUT_SHAPE[1:])


@pytest.mark.parametrize("rank", [2, 3, 5])
def test_pages_of_other_ranks(rank):
    """Leading axes are counted as one, and the result has those of the caller."""
    q = {2: Q[0, 0], 3: Q[0], 5: FIVE}[rank]
    batch, heads = {2: (1, 1), 3: (1, 8), 5: (6, 8)}[rank]
    table = np.zeros((batch, 3), int)
    k, v = (PAGES[:, :1], PAGES_V[:, :1]) if rank == 2 else (PAGES, PAGES_V)
    mask = zeros(*q.shape[:-1], 24) if rank > 2 else zeros(16, 24)
    given = {"block_table": table, "attn_mask": mask, "return_lse": True}
    shape = (*q.shape[:-1], 48)
    for out in None, zeros(*shape):
        p = _check.problem(q, k, v, out=out, **given)
        assert p.q.shape == (batch, heads, 16, 64) and np.shares_memory(p.q, q)
        assert p.mask.shape == (batch, heads, 16, 24) and np.shares_memory(p.mask, mask)
        assert p.out.shape == (batch, heads, 16, 48) and p.result.shape == shape
        assert np.shares_memory(p.out, p.result) and (out is None or p.result is out)
        assert p.lse.shape == (batch, heads, 16) and p.lse_result.shape == shape[:-1]
        assert np.shares_memory(p.lse, p.lse_result)
        assert p.kv_end.shape == p.q_offset.shape == (batch,)
    p = _check.weights_problem(q, k, block_table=table)
    assert p.out.shape == (batch, heads, 16, 24) and p.result.shape == (*q.shape[:-1], 24)
    p = _check.problem(q, k, v, block_table=table.reshape(*q.shape[:-3], 3))
    assert p.block_table.shape == (batch, 3)


def test_leading_axes_of_one_need_no_stride():
    q = zeros(3, 2, 8, 16, 64)[:, :1]
    p = _check.problem(q, PAGES, PAGES_V, block_table=np.zeros((3, 3), int))
    assert p.q.shape == (3, 8, 16, 64) and np.shares_memory(p.q, q)
    p = _check.problem(FIVE, PAGES, PAGES_V, block_table=np.zeros((6, 3), int), attn_mask=zeros(24))
    assert p.mask.strides == (0, 0, 0, 4)


# ---- scales --------------------------------------------------------------------------------------

FORMS = {
    "number": (0.5, (0, 0, 0)),
    "integer": (2, (0, 0, 0)),
    "scalar": (np.float64(0.5), (0, 0, 0)),
    "rank 0": (np.array(0.5), (0, 0, 0)),
    "list": ([0.5, 0.25], (0, 4, 0)),
    "head": (zeros(2, dtype=np.float64), (0, 4, 0)),
    "batch and head": (zeros(2, 2), (8, 4, 0)),
    "key": (zeros(2, 2, 32), (256, 128, 4)),
    "key, strided": (zeros(32, 2, 2).T[::-1], (-4, 8, 16)),
    "one batch entry": (zeros(1, 2, 32), (0, 128, 4)),
    "no batch": (zeros(2, 32), (0, 128, 4)),
}


@pytest.mark.parametrize("value, strides", FORMS.values(), ids=FORMS)
def test_scales(value, strides):
    k, v = {"one batch entry": (K[:1], V[:1]), "no batch": (K[0], V[0])}.get(
        next(name for name, form in FORMS.items() if form[0] is value), (K, V)
    )
    p = _check.problem(Q, k, v, k_scale=value, v_scale=value)
    for scale in p.k_scale, p.v_scale, _check.weights_problem(Q, k, k_scale=value).k_scale:
        assert scale.dtype == F32 and scale.shape == (2, 2, 32) and scale.strides == strides
        if np.ndim(value) and strides[2]:
            assert np.shares_memory(scale, value)
    assert _check.problem(Q, K, V).k_scale is None is _check.problem(Q, K, V).v_scale


def test_scale_of_the_one_head_that_serves_all():
    k = K[:, :1]
    for value in zeros(1), zeros(2), zeros(2, 1), zeros(2, 1, 32), zeros(2, 2, 32):
        assert _check.problem(Q, k, V, k_scale=value).k_scale.shape == (2, 2, 32)


def test_scales_of_more_leading_axes():
    k, v = (np.broadcast_to(t[:1], (2, 3, *t.shape[1:])) for t in (K, V))
    for shape in (6, 2), (2, 3, 2), (6, 2, 32), (2, 3, 2, 32):
        value = zeros(*shape)
        p = _check.problem(FIVE, k, v, k_scale=value)
        assert p.k_scale.shape == (2, 3, 2, 32)


@pytest.mark.parametrize("value", [0.5, zeros(2), zeros(6, 2, 8)], ids=["number", "head", "key"])
def test_scales_of_pages(value):
    p = _check.problem(**PAGED, k_scale=value, v_scale=value)
    assert p.k_scale.shape == p.v_scale.shape == (6, 2, 8) and p.k_scale.dtype == F32
    assert np.ndim(value) < 3 or np.shares_memory(p.k_scale, value)


# ---- packed sequences ----------------------------------------------------------------------------


def test_varlen():
    p = _check.varlen_problem(**VARLEN, return_lse=True)
    assert p.q.shape == (8, 10, 64) and p.k.shape == (2, 12, 64) and p.v.shape == (2, 12, 48)
    assert np.shares_memory(p.q, VARLEN["q"]) and p.mask is None and p.block_table is None
    assert p.out.shape == (8, 10, 48) and p.result.shape == (10, 8, 48)
    assert p.result.flags.c_contiguous and np.shares_memory(p.out, p.result)
    assert p.lse.shape == (8, 10) and p.lse_result is p.lse and p.lse.flags.c_contiguous
    assert p.cu_q.tolist() == [0, 4, 4, 10] and p.cu_k.tolist() == [0, 2, 5, 12]
    assert p.kv_end.tolist() == [2, 3, 7] and p.kv_begin.tolist() == [0, 0, 0]
    assert p.q_offset.tolist() == [-2, 3, 1]
    for each in p.cu_q, p.cu_k, p.kv_begin, p.kv_end, p.q_offset:
        assert each.dtype == np.int64 and each.flags.c_contiguous
    out = zeros(10, 8, 48)
    assert _check.varlen_problem(**VARLEN, out=out).result is out


def test_varlen_options():
    p = _check.varlen_problem(
        **VARLEN, causal=True, window_size=(3, None), scale=2, softcap=5.0, alibi_slopes=[0.5] * 8,
        sinks=zeros(8), q_offset=1, kv_lengths=[1, 0, 7], kv_starts=np.array([1, 3, 2], np.uint8),
        k_scale=zeros(2, 12), v_scale=[0.5, 0.25], precision="high", num_threads=2,
    )  # fmt: skip
    assert (p.causal, p.left, p.right, p.scale, p.softcap) == (True, 3, -1, 2.0, 5.0)
    assert p.alibi.shape == (3, 8) and p.sinks.shape == (8,) and p.precision == "high"
    assert p.q_offset.tolist() == [1, 1, 1] and p.kv_end.tolist() == [1, 0, 7]
    assert p.kv_begin.tolist() == [1, 3, 2] and p.num_threads == 2
    assert p.k_scale.strides == (48, 4) and p.v_scale.shape == (2, 12)
    assert p.v_scale.strides == (4, 0) and p.lse is None


def test_varlen_of_itself():
    q = VARLEN["q"]
    p = _check.varlen_problem(q, q, q, np.array([0, 4, 4, 10], np.uint16))
    assert p.cu_k.tolist() == [0, 4, 4, 10] and p.kv_end.tolist() == [4, 0, 6]
    assert _check.varlen_problem(q[:0], q[:0], q[:0], [0]).kv_end.shape == (0,)
    assert _check.varlen_problem(q[:0], q[:0], q[:0], [0, 0]).result.shape == (0, 8, 64)


def test_varlen_result_follows_the_memory_order_of_q():
    q = zeros(8, 10, 64).swapaxes(0, 1)
    p = _check.varlen_problem(**{**VARLEN, "q": q})
    assert p.result.shape == (10, 8, 48) and p.out.flags.c_contiguous


def test_varlen_pages():
    p = _check.varlen_problem(**VARLEN_PAGED, k_scale=zeros(6, 2, 8))
    assert p.k.shape == (6, 2, 8, 64) and p.v.shape == (6, 2, 8, 48) and p.cu_k is None
    assert p.kv_end.tolist() == [16, 0, 9] and p.q_offset.tolist() == [12, 0, 3]
    assert p.block_table.tolist() == [[0, 1], [2, 3], [4, 5]] and p.block_table.dtype == np.int32
    assert p.k_scale.shape == (6, 2, 8) and p.v_scale is None
    changes = {"kv_lengths": None, "cu_seqlens_k": [0, 16, 16, 25]}
    p = _check.varlen_problem(**{**VARLEN_PAGED, **changes})
    assert p.kv_end.tolist() == [16, 0, 9] and p.cu_k is None
    p = _check.varlen_problem(**{**VARLEN_PAGED, **changes, "kv_lengths": [3, 0, 0]})
    assert p.kv_end.tolist() == [3, 0, 0]


def test_cuts_are_copies():
    cuts = np.array([0, 4, 4, 10])
    p = _check.varlen_problem(**{**VARLEN, "cu_seqlens_q": cuts})
    assert not np.shares_memory(p.cu_q, cuts)
