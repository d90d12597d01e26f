# SPDX-License-Identifier: MIT
"""Validation of `attention_varlen`: packed sequences and where they are cut."""

import numpy as np

from fastattn import _check_cache as cache
from fastattn import _check_dtypes as dtypes
from fastattn import _check_options as options
from fastattn import _check_tensors as tensors
from fastattn._check_problems import VarlenProblem
from fastattn._check_scores import set_effort, set_scores
from fastattn._core import in_default_environment


@in_default_environment
def varlen_problem(
    q, k, v, cu_seqlens_q, cu_seqlens_k=None, *, causal=False, window_size=None, scale=None,
    softcap=0.0, alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, kv_starts=None,
    block_table=None, k_scale=None, v_scale=None, precision="highest", out=None, return_lse=False,
    num_threads=None,
):  # fmt: skip
    """Check the arguments of `attention_varlen` and return them as a `VarlenProblem`."""
    p = VarlenProblem()
    p.mask = p.block_table = None
    paged = block_table is not None
    set_effort(p, precision, num_threads)
    user_q, own = _set_packed(p, q, k, v, paged)
    p.cu_q = cut_points("cu_seqlens_q", cu_seqlens_q)
    check_end("cu_seqlens_q", p.cu_q, p.q.shape[1], "the rows of q")
    batch = (p.cu_q.size - 1,)
    set_scores(p, batch, causal, window_size, scale, softcap, alibi_slopes, sinks)
    entries = cache.table(block_table, batch) if paged else None
    keys = _set_keys(p, cu_seqlens_k, kv_lengths, entries)
    _set_positions(p, keys, q_offset, kv_lengths, kv_starts)
    if paged:
        pages, _, page, _ = p.k.shape
        p.block_table = cache.used_pages(entries, pages, page, p.kv_begin, p.kv_end)
    cache.set_scales(p, k_scale, v_scale, own, (), paged)
    shape = (*p.q.shape[:-1], p.v.shape[-1])
    if out is None:
        tensors.allocate(p, shape, True, False, user_q.flags.c_contiguous)
    else:
        inputs = {
            "q": q, "k": k, "v": v, "cu_seqlens_q": cu_seqlens_q, "cu_seqlens_k": cu_seqlens_k,
            "alibi_slopes": alibi_slopes, "sinks": sinks, "q_offset": q_offset,
            "kv_lengths": kv_lengths, "kv_starts": kv_starts, "block_table": block_table,
            "k_scale": k_scale, "v_scale": v_scale,
        }  # fmt: skip
        tensors.accept(p, out, shape, True, False, inputs)
    p.lse = p.lse_result = None
    if options.flag("return_lse", return_lse):
        p.lse = p.lse_result = np.empty(shape[:-1], dtypes.of_state(p.q.dtype))
    return p


def _set_packed(p, q, k, v, paged):
    """Set q, k, v of `p`, once they are known to be packed; return what `set_tensors` does."""
    q, k, v = options.array("q", q), options.array("k", k), options.array("v", v)
    packs = [("q", q)] if paged else [("q", q), ("k", k), ("v", v)]
    for name, tensor in packs:
        if tensor.ndim != 3:
            raise ValueError(
                f"{name}: expected 3 axes (tokens, heads, depth), got shape {tensor.shape}"
            )
    return tensors.set_tensors(p, q, k, v, True, paged)


def cut_points(name, value):
    """Return `cu_seqlens_q` or `cu_seqlens_k` as a new int64 array that starts at 0 and rises."""
    value = options.integers(name, value, "an array of integers")
    if value.ndim != 1 or value.size < 1:
        raise ValueError(f"{name}: expected shape (B + 1,), got shape {value.shape}")
    value = options.int64(name, value)
    if value[0] != 0:
        raise ValueError(f"{name}: expected 0 at first, got {value[0]}")
    falls = np.flatnonzero(value[1:] < value[:-1])
    if falls.size:
        before, after = value[falls[0] : falls[0] + 2]
        raise ValueError(f"{name}: expected values that do not fall, got {after} after {before}")
    return value


def check_end(name, cuts, total, what):
    """Refuse cuts that leave something over, or reach past the end."""
    if cuts[-1] != total:
        raise ValueError(f"{name}: expected {total} at last, {what}, got {cuts[-1]}")


def _set_keys(p, cu_seqlens_k, kv_lengths, entries):
    """Set where the keys of each sequence lie; return how many each one has, (B,)."""
    batch = p.cu_q.size - 1
    p.cu_k = None
    cuts = p.cu_q
    if cu_seqlens_k is not None:
        cuts = cut_points("cu_seqlens_k", cu_seqlens_k)
        if cuts.size != batch + 1:
            raise ValueError(
                f"cu_seqlens_k: expected shape ({batch + 1},) like cu_seqlens_q, got shape "
                f"{cuts.shape}"
            )
    if entries is None:
        check_end(
            "cu_seqlens_q" if cu_seqlens_k is None else "cu_seqlens_k", cuts, p.k.shape[1],
            "the rows of k",
        )  # fmt: skip
        p.cu_k = cuts
        return np.diff(cuts)
    room = np.full(batch, entries.shape[1] * p.k.shape[2])
    if cu_seqlens_k is not None:
        _check_room("cu_seqlens_k", np.diff(cuts), room, "the room in its blocks")
        return np.diff(cuts)
    if kv_lengths is None:
        raise ValueError("kv_lengths: expected it or cu_seqlens_k with block_table, got neither")
    return room


def _check_room(name, values, most, what):
    """Refuse values of which one is larger than its own limit."""
    over = np.flatnonzero(values > most)
    if over.size:
        b = over[0]
        raise ValueError(
            f"{name}: expected at most {most[b]} for sequence {b}, {what}, got {values[b]}"
        )


def _set_positions(p, keys, q_offset, kv_lengths, kv_starts):
    """Set the range of keys and the position of query 0 of each sequence."""
    lead, most = keys.shape, options.LARGEST_OFFSET
    p.kv_begin, p.kv_end = np.zeros(lead, np.int64), keys
    if kv_starts is not None:
        p.kv_begin = options.per_batch("kv_starts", kv_starts, lead, 0, most)
        _check_room("kv_starts", p.kv_begin, keys, "the number of its keys")
    if kv_lengths is not None:
        p.kv_end = options.per_batch("kv_lengths", kv_lengths, lead, 0, most)
        _check_room("kv_lengths", p.kv_end, keys, "the number of its keys")
    if q_offset is None:
        p.q_offset = p.kv_end - np.diff(p.cu_q)
    else:
        p.q_offset = options.per_batch("q_offset", q_offset, lead, -most, most)
