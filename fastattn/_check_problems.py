# SPDX-License-Identifier: MIT
"""What a checked call looks like: complete and consistent, so that nobody behind checks again.

Logical order, whatever the layout of the caller: q ``(lead..., Hq, Sq, D)``, k
``(lead..., Hkv, Sk, D)``, v ``(lead..., Hkv, Sk, Dv)``, all three with the same `lead`. Tensors are
views of the caller's memory, never copies; broadcasting shows as a zero stride.
"""

import numpy as np


class Problem:
    """A checked call of `attention`, in the form that the binding takes.

    Attributes
    ----------
    q, k, v : ndarray
        Views in logical order, same leading shape. q is float32, float64, float16 or bfloat16; k
        and v are of one dtype, q's or a narrower one. With `block_table`, k and v are
        (pages, Hkv, page, D) and (pages, Hkv, page, Dv), and `lead` is (B,).
    out : ndarray
        Writable view in logical order, (lead..., Hq, Sq, Dv), of q's dtype.
    result : ndarray
        The same memory in the caller's layout and rank: what the caller gets.
    lse, lse_result : ndarray or None
        C-contiguous (lead..., Hq, Sq), float64 for float64 and float32 otherwise, and the caller's
        view of it.
    mask : ndarray or None
        bool, float32 or q's dtype, broadcast to (lead..., Hq, Sq, Sk); with `block_table`
        Sk = blocks * page.
    scale, softcap : float
    causal : bool
    left, right : int
        Window; -1 is unbounded.
    q_offset, kv_begin, kv_end : ndarray
        int64 of shape (B,), B the product of `lead`. kv_begin may exceed kv_end: no key then.
    alibi : ndarray or None
        float64 (B, Hq).
    sinks : ndarray or None
        float64 (Hq,).
    k_scale, v_scale : ndarray or None
        float32 (lead..., Hkv, Sk), or (pages, Hkv, page) with `block_table`; zero strides where
        one value serves many keys.
    block_table : ndarray or None
        C-contiguous int32 (B, blocks). Entries of blocks with a key from kv_begin to kv_end name a
        page; the others are 0 or name one too.
    precision : str
    num_threads : int or None
    """

    __slots__ = (
        "q", "k", "v", "out", "result", "lse", "lse_result", "mask", "scale", "softcap", "causal",
        "left", "right", "q_offset", "kv_begin", "kv_end", "alibi", "sinks", "k_scale", "v_scale",
        "block_table", "precision", "num_threads",
    )  # fmt: skip

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray | None
    out: np.ndarray
    result: np.ndarray
    lse: np.ndarray | None
    lse_result: np.ndarray | None
    mask: np.ndarray | None
    scale: float
    softcap: float
    causal: bool
    left: int
    right: int
    q_offset: np.ndarray
    kv_begin: np.ndarray
    kv_end: np.ndarray
    alibi: np.ndarray | None
    sinks: np.ndarray | None
    k_scale: np.ndarray | None
    v_scale: np.ndarray | None
    block_table: np.ndarray | None
    precision: str
    num_threads: int | None


class WeightsProblem(Problem):
    """A checked call of `attention_weights`: `out` is (lead..., Hq, Sq, Sk); v and lse are None."""

    __slots__ = ()


class VarlenProblem(Problem):
    """A checked call of `attention_varlen`: B sequences packed one behind the other.

    Like a `Problem` without leading axes, with these differences.

    Attributes
    ----------
    q, out : ndarray
        (Hq, total_q, D) and (Hq, total_q, Dv).
    k, v : ndarray
        (Hkv, total_k, D) and (Hkv, total_k, Dv), or with `block_table` (pages, Hkv, page, D) and
        (pages, Hkv, page, Dv).
    cu_q : ndarray
        C-contiguous int64 (B + 1,): sequence b has the queries cu_q[b] to cu_q[b + 1].
    cu_k : ndarray or None
        The same for the keys; None with `block_table`.
    q_offset, kv_begin, kv_end : ndarray
        int64 (B,), counted from the first key of each sequence.
    lse : ndarray or None
        (Hq, total_q).
    mask : None
    k_scale, v_scale : ndarray or None
        (Hkv, total_k), or (pages, Hkv, page).
    """

    __slots__ = ("cu_q", "cu_k")

    cu_q: np.ndarray
    cu_k: np.ndarray | None


class MergeProblem:
    """A checked call of `merge_states`.

    Attributes
    ----------
    outs, lses : tuple of ndarray
        Partial outputs (..., Sq, D) of one dtype and their log-sum-exp (..., Sq), float64 for
        float64 and float32 otherwise.
    out, lse : ndarray
        Where the union goes.
    """

    __slots__ = ("outs", "lses", "out", "lse")

    outs: tuple[np.ndarray, ...]
    lses: tuple[np.ndarray, ...]
    out: np.ndarray
    lse: np.ndarray
