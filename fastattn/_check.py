# SPDX-License-Identifier: MIT
"""Validation of whole calls: every public function passes its arguments through here once.

What comes out (`Problem`, `WeightsProblem`, `VarlenProblem`, `MergeProblem`) is complete and
consistent, so the binding and the C code check nothing. What is wrong raises before anything is
computed or written. The rooms beside this one: `_check_problems` says what a checked call looks
like, `_check_options` checks single arguments, `_check_dtypes` which types go together,
`_check_tensors` q, k, v and out, `_check_scores` what changes scores, `_check_cache` pages and
scales, `_check_varlen` packed sequences.
"""

import functools
import math

import numpy as np

from fastattn import _check_cache as cache
from fastattn import _check_dtypes as dtypes
from fastattn import _check_options as options
from fastattn import _check_tensors as tensors
from fastattn._check_problems import MergeProblem, Problem, VarlenProblem, WeightsProblem
from fastattn._check_scores import mask, set_effort, set_scores
from fastattn._check_varlen import varlen_problem
from fastattn._core import in_default_environment

__all__ = [
    "MergeProblem",
    "Problem",
    "VarlenProblem",
    "WeightsProblem",
    "merge_problem",
    "problem",
    "sdpa_arguments",
    "varlen_problem",
    "weights_problem",
]

# Positions of batches up to here are kept for later calls: that spares small calls time, while
# those of large ones would only hold memory as long as the process lives.
MOST_KEPT = 4096


@in_default_environment
def problem(
    q, k, v, *, attn_mask=None, causal=False, window_size=None, scale=None, softcap=0.0,
    alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, kv_starts=None,
    block_table=None, k_scale=None, v_scale=None, layout="bhsd", precision="highest", out=None,
    return_lse=False, num_threads=None,
):  # fmt: skip
    """Check the arguments of `attention` and return them as a `Problem`.

    Raises
    ------
    TypeError
        Something is not an array, or of a dtype that is not supported.
    ValueError
        A shape, a range or a combination is wrong.
    """
    p = Problem()
    bshd = options.choice("layout", layout, options.LAYOUTS) == "bshd"
    set_effort(p, precision, num_threads)
    user_q, own = tensors.set_tensors(p, q, k, v, bshd, block_table is not None)
    lead = p.q.shape[:-3]
    set_scores(p, lead, causal, window_size, scale, softcap, alibi_slopes, sinks)
    _set_keys(p, lead, attn_mask, block_table, q_offset, kv_lengths, kv_starts)
    p.k_scale = p.v_scale = None
    if k_scale is not None or v_scale is not None:
        cache.set_scales(p, k_scale, v_scale, own, lead, block_table is not None)
    shape = (*p.q.shape[:-1], p.v.shape[-1])
    headless = user_q.ndim == 2
    if out is None:
        tensors.allocate(
            p, shape, bshd, headless, user_q.size == p.q.size and user_q.flags.c_contiguous
        )
    else:
        inputs = {
            "q": q, "k": k, "v": v, "attn_mask": attn_mask, "alibi_slopes": alibi_slopes,
            "sinks": sinks, "q_offset": q_offset, "kv_lengths": kv_lengths,
            "kv_starts": kv_starts, "block_table": block_table, "k_scale": k_scale,
            "v_scale": v_scale,
        }  # fmt: skip
        tensors.accept(p, out, shape, bshd, headless, inputs)
    p.lse = p.lse_result = None
    if options.flag("return_lse", return_lse):
        p.lse = np.empty(shape[:-1], dtypes.of_state(p.q.dtype))
        p.lse_result = p.lse[..., 0, :] if headless else p.lse
    if block_table is not None:
        _count_lead_as_one(p)
    return p


@in_default_environment
def weights_problem(
    q, k, *, attn_mask=None, causal=False, window_size=None, scale=None, softcap=0.0,
    alibi_slopes=None, sinks=None, q_offset=None, kv_lengths=None, kv_starts=None,
    block_table=None, k_scale=None, layout="bhsd", precision="highest", num_threads=None,
):  # fmt: skip
    """Check the arguments of `attention_weights` and return them as a `WeightsProblem`."""
    p = WeightsProblem()
    bshd = options.choice("layout", layout, options.LAYOUTS) == "bshd"
    set_effort(p, precision, num_threads)
    user_q, own = tensors.set_tensors(p, q, k, k, bshd, block_table is not None)
    lead = p.q.shape[:-3]
    set_scores(p, lead, causal, window_size, scale, softcap, alibi_slopes, sinks)
    keys = _set_keys(p, lead, attn_mask, block_table, q_offset, kv_lengths, kv_starts)
    cache.set_scales(p, k_scale, None, own, lead, block_table is not None)
    p.v = None
    p.out = tensors.empty("q, k", (*p.q.shape[:-1], keys), p.q.dtype)
    p.result = p.out[..., 0, :, :] if user_q.ndim == 2 else p.out
    p.lse = p.lse_result = None
    if block_table is not None:
        _count_lead_as_one(p)
    return p


def merge_problem(outs, lses, out=None):
    """Check the arguments of `merge_states` and return them as a `MergeProblem`."""
    p = MergeProblem()
    p.outs = options.states_of("outs", outs)
    p.lses = options.states_of("lses", lses)
    if len(p.outs) != len(p.lses):
        raise ValueError(f"lses: expected {len(p.outs)} arrays like outs, got {len(p.lses)}")
    first = p.outs[0]
    if first.ndim < 2:
        raise ValueError(f"outs: expected shape (..., Sq, D), got shape {first.shape}")
    dtypes.of_queries("outs", first.dtype)
    for name, states, shape, dtype in (
        ("outs", p.outs, first.shape, first.dtype),
        ("lses", p.lses, first.shape[:-1], dtypes.of_state(first.dtype)),
    ):
        for state in states:
            if state.dtype != dtype:
                raise TypeError(
                    f"{name}: expected dtype {dtype.name} with {first.dtype.name} outs[0], "
                    f"got {dtypes.dtype_name(state.dtype)}"
                )
            if state.shape != shape:
                raise ValueError(f"{name}: expected shape {shape} each, got {state.shape}")
            options.aligned(name, state)
    if out is None:
        p.out = tensors.ordered_like("outs", first, first.shape)
    else:
        p.out = options.writable(out, first.shape, first.dtype)
        inputs = [("outs", state) for state in p.outs] + [("lses", state) for state in p.lses]
        options.reject_overlap(p.out, inputs)
    p.lse = np.empty(first.shape[:-1], dtypes.of_state(first.dtype))
    return p


def sdpa_arguments(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """Translate torch's `scaled_dot_product_attention` into a call of `attention`.

    Returns
    -------
    q, k, v : ndarray
        Positional arguments of `attention`.
    keywords : dict
        Its keyword arguments. ``q_offset`` is 0, because torch aligns `is_causal` at the top left.
    """
    q, k, v = query, key, value
    if not type(q) is type(k) is type(v) is np.ndarray:
        q, k, v = options.array("query", q), options.array("key", k), options.array("value", v)
    options.no_dropout(dropout_p)
    causal = options.flag("is_causal", is_causal)
    if causal and attn_mask is not None:
        raise ValueError("attn_mask: expected None with is_causal=True, got both")
    if q.ndim == 2 and (k.ndim > 2 or v.ndim > 2):
        q = q[None]  # torch broadcasts, so the result has every axis that one of the inputs has
    q, k, v = _matching_heads(q, k, v, options.flag("enable_gqa", enable_gqa))
    return q, k, v, {"attn_mask": attn_mask, "causal": causal, "q_offset": 0, "scale": scale}


def _matching_heads(q, k, v, enable_gqa):
    """Return the three with numbers of heads that `attention` takes as torch does."""
    kv_heads = k.shape[-3:-2]
    if kv_heads == v.shape[-3:-2] and (enable_gqa or kv_heads == q.shape[-3:-2]):
        return q, k, v
    counts = tensors.sdpa_heads(q.shape, k.shape, v.shape, enable_gqa)
    return [_repeated(each, heads) for each, heads in zip((q, k, v), counts, strict=True)]


def _repeated(tensor, heads):
    """Give every head of a tensor a number of neighbours like it; one head alone is not copied."""
    own = tensor.shape[-3] if tensor.ndim > 2 else heads
    if own == heads:
        return tensor
    if own == 1:
        return tensors.with_heads(tensor, heads)
    return np.repeat(tensor, heads // own, axis=-3)


def _set_keys(p, lead, attn_mask, block_table, q_offset, kv_lengths, kv_starts):
    """Set which keys there are, where queries stand among them, and the mask; return Sk."""
    p.mask = p.block_table = None
    if block_table is None:
        keys = p.k.shape[-2]
        _set_positions(p, lead, keys, q_offset, kv_lengths, kv_starts)
    else:
        pages, _, page, _ = p.k.shape
        entries = cache.table(block_table, lead)
        keys = entries.shape[1] * page
        _set_positions(p, lead, keys, q_offset, kv_lengths, kv_starts)
        p.block_table = cache.used_pages(entries, pages, page, p.kv_begin, p.kv_end)
    if attn_mask is not None:
        p.mask = mask(attn_mask, (*p.q.shape[:-1], keys), p.q.dtype)
    return keys


def _set_positions(p, lead, keys, q_offset, kv_lengths, kv_starts):
    """Set the range of keys and the position of query 0 for each batch entry."""
    queries = p.q.shape[-2]
    batch = math.prod(lead)
    positions = _kept_positions if batch <= MOST_KEPT else _default_positions
    p.q_offset, p.kv_begin, p.kv_end = positions(batch, queries, keys)
    if kv_starts is not None:
        p.kv_begin = options.per_batch("kv_starts", kv_starts, lead, 0, keys)
    if kv_lengths is not None:
        p.kv_end = options.per_batch("kv_lengths", kv_lengths, lead, 0, keys)
        p.q_offset = p.kv_end - queries
    if q_offset is not None:
        most = options.LARGEST_OFFSET
        p.q_offset = options.per_batch("q_offset", q_offset, lead, -most, most)


def _default_positions(batch, queries, keys):
    """Return q_offset, kv_begin, kv_end where nobody gave any: read-only, as calls share them."""
    positions = np.empty((3, batch), np.int64)
    positions[:] = [[keys - queries], [0], [keys]]
    positions.flags.writeable = False
    return tuple(positions)


_kept_positions = functools.lru_cache(maxsize=16)(_default_positions)


def _count_lead_as_one(p):
    """Give what belongs to the queries one leading axis, as `block_table` has; `result` stays."""
    p.q, p.out = tensors.with_one_lead("q", p.q), tensors.with_one_lead("out", p.out)
    if p.mask is not None:
        p.mask = tensors.with_one_lead("attn_mask", p.mask)
    if p.lse is not None:
        p.lse = p.lse.reshape(p.out.shape[:-1])
