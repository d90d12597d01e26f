# SPDX-License-Identifier: MIT
"""Other implementations of attention behind one small interface, and the check before the clock.

To add a library: subclass `Peer` in a module of its own, import what it needs inside the methods,
and name the class in `PEERS`. `check` compares its result with the oracle before anything is timed;
there is no figure for a wrong result.
"""

import dataclasses
import importlib.metadata
import importlib.util

import numpy as np

from fastattn import reference

ROWS_CHECKED = 24
# Relative to max|v|. Far above the rounding of any float32 implementation, far below what a wrong
# mask, a wrong scale or 16-bit products give.
WRONG = {"float32": 1e-4, "float64": 1e-10}


class WrongResultError(RuntimeError):
    """A result differs from the oracle by more than rounding."""


@dataclasses.dataclass(frozen=True)
class Prepared:
    """A problem, ready to run.

    Attributes
    ----------
    call : callable
        Without arguments; the only thing that is timed. Returns what the library returns.
    array : callable
        Turns that into an ndarray (B, Hq, Sq, Dv).
    keep : object
        What has to stay alive as long as `call` may be called.
    """

    call: object
    array: object = np.asarray
    keep: object = None


class Peer:
    """One implementation, bound to a number of threads.

    Attributes
    ----------
    name : str
        Label in tables and on the command line.
    package : str
        Distribution that has to be installed.
    threads : int
    """

    name = ""
    package = ""
    module = ""  # import name, if it is not the distribution's

    def __init__(self, threads):
        self.threads = threads

    @property
    def version(self):
        """Version of the library."""
        return importlib.metadata.version(self.package)

    @classmethod
    def available(cls):
        """Whether the library is installed (it is not imported)."""
        return importlib.util.find_spec(cls.module or cls.package) is not None

    def supports(self, problem):
        """Return None, or the reason why this library has no answer to `problem`."""
        if problem.causal and problem.Sq != problem.Sk:
            return "causal is aligned at the top left"
        return None

    def prepare(self, problem, inputs):
        """Return `Prepared`; conversions of layout and types happen here, untimed."""
        raise NotImplementedError


class Fastattn(Peer):
    """This package, on its chosen ISA or a forced one."""

    name = package = "fastattn"

    def __init__(self, threads, isa=None):
        super().__init__(threads)
        self.isa = isa
        if isa is not None:
            self.name = f"fastattn-{isa}"

    @property
    def version(self):
        """Version of this package."""
        import fastattn

        return fastattn.__version__

    def supports(self, problem):
        """Everything."""
        return None

    def prepare(self, problem, inputs):
        """Bind the arguments."""
        import fastattn

        q, k, v = inputs.q, inputs.k, inputs.v
        options = {"num_threads": self.threads}
        if problem.causal:
            options["causal"] = True
        if inputs.mask is not None:
            options["attn_mask"] = inputs.mask
        if inputs.kv_lengths is not None:
            # The queries of a padded batch stand at the left, like the keys.
            options |= {"kv_lengths": inputs.kv_lengths, "q_offset": problem.Sk - problem.Sq}
        attention, isa = fastattn.attention, self.isa

        def call():
            return attention(q, k, v, **options)

        def call_forced():
            with fastattn.use_isa(isa):
                return attention(q, k, v, **options)

        return Prepared(call if isa is None else call_forced)


class NumPy(Peer):
    """softmax(q k^T) v as it is written with NumPy, one head at a time, in place."""

    name = package = "numpy"
    most_scores = 1 << 28  # nobody would wait for more

    def supports(self, problem):
        """Everything but score tables of gigabytes."""
        scores = problem.B * problem.Hq * problem.Sq * problem.Sk
        return "too large" if scores > self.most_scores else None

    def prepare(self, problem, inputs):
        """Fold everything that forbids into one additive mask per batch entry."""
        _limit_blas(self.threads)
        added = additive_mask(problem, inputs, causal=True)
        q, v = inputs.q, inputs.v
        group = problem.Hq // problem.Hkv
        scale = q.dtype.type(problem.D**-0.5)
        transposed = inputs.k.swapaxes(-1, -2)

        def call():
            out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
            for b, h in np.ndindex(q.shape[:2]):
                s = (q[b, h] * scale) @ transposed[b, h // group]
                if added is not None:
                    s += added[b if len(added) > 1 else 0, 0]
                s -= s.max(-1, keepdims=True)
                np.exp(s, out=s)
                total = s.sum(-1, keepdims=True)
                np.matmul(s, v[b, h // group], out=out[b, h])
                out[b, h] /= total
            return out

        return Prepared(call)


def _limit_blas(threads):
    """Bind NumPy's BLAS to `threads`, if threadpoolctl is installed (there is no other way)."""
    if importlib.util.find_spec("threadpoolctl") is not None:
        import threadpoolctl

        threadpoolctl.threadpool_limits(threads, user_api="blas")


def bool_mask(problem, inputs, causal=False):
    """Return everything that forbids as one bool mask (B or 1, 1, Sq or 1, Sk), or None.

    The causal part is only in it if asked for; libraries have a flag of their own for that.
    """
    mask = None
    if inputs.mask is not None and inputs.mask.dtype == bool:
        mask = inputs.mask[None, None]
    if inputs.kv_lengths is not None:
        present = np.arange(problem.Sk) < inputs.kv_lengths[:, None]
        mask = present[:, None, None] if mask is None else mask & present[:, None, None]
    if causal and problem.causal:
        lower = np.tri(problem.Sq, problem.Sk, problem.Sk - problem.Sq, dtype=bool)
        mask = lower[None, None] if mask is None else mask & lower
    return mask


def one_mask(problem, inputs):
    """Return the float mask, or else everything that forbids as a bool mask, or None.

    For libraries that take either, but one only (their `supports` refuses both together).
    """
    mask = inputs.mask
    return bool_mask(problem, inputs) if mask is None or mask.dtype == bool else mask


def additive_mask(problem, inputs, causal=False):
    """Return the same as numbers to add, the float mask included, or None."""
    dtype = inputs.q.dtype
    forbidden = bool_mask(problem, inputs, causal)
    added = None
    if inputs.mask is not None and inputs.mask.dtype != bool:
        added = inputs.mask[None, None]
    if forbidden is not None:
        # The lowest number, not -inf: some libraries make NaN of -inf - -inf in their blocks.
        numbers = np.where(forbidden, dtype.type(0), np.finfo(dtype).min)
        added = numbers if added is None else np.maximum(added + numbers, np.finfo(dtype).min)
    return added


def check(prepared, problem, inputs, seed=0):
    """Run `prepared` once and compare some rows of its result with the oracle.

    Returns
    -------
    float
        Largest error, relative to max|v|.

    Raises
    ------
    WrongResultError
        The shape is wrong, anything is NaN, or a row differs by more than rounding.
    """
    result = prepared.array(prepared.call())
    expected_shape = (problem.B, problem.Hq, problem.Sq, problem.Dv)
    if result.shape != expected_shape:
        raise WrongResultError(f"shape {result.shape}, expected {expected_shape}")
    if not np.isfinite(result).all():
        raise WrongResultError("NaN or infinity in the result")
    worst = 0.0
    for row in _rows(problem, seed):
        worst = max(worst, float(np.abs(result[row] - oracle_row(problem, inputs, *row)).max()))
    error = worst / float(np.abs(inputs.v).max())
    if error > WRONG[problem.dtype]:
        raise WrongResultError(f"error {error:.1e} of max|v|, allowed {WRONG[problem.dtype]:.0e}")
    return error


def _rows(problem, seed):
    """Return some (batch, head, query): the corners, and others at random."""
    rng = np.random.default_rng(seed)
    sizes = problem.B, problem.Hq, problem.Sq
    picked = {tuple(int(rng.integers(size)) for size in sizes) for _ in range(ROWS_CHECKED)}
    return sorted(picked | {(0, 0, 0), tuple(size - 1 for size in sizes)})


def oracle_row(problem, inputs, b, h, i):
    """Return one row of the result, (Dv,), from the oracle in float64."""
    kv_head = h // (problem.Hq // problem.Hkv)
    mask = inputs.mask
    return reference.attention(
        inputs.q[b, h, i : i + 1],
        inputs.k[b, kv_head],
        inputs.v[b, kv_head],
        attn_mask=None if mask is None else mask[i : i + 1],
        causal=problem.causal,
        q_offset=i + problem.Sk - problem.Sq,
        kv_lengths=None if inputs.kv_lengths is None else int(inputs.kv_lengths[b]),
    )[0]


def classes():
    """Return {name: class} of every peer known, installed or not; this package comes first."""
    from fastattn.measure.peer_onnxruntime import OnnxAttention, OnnxMultiHead
    from fastattn.measure.peer_openvino import OpenVINO
    from fastattn.measure.peer_torch import Torch

    known = [NumPy, Torch, OnnxAttention, OnnxMultiHead, OpenVINO]
    return {peer.name: peer for peer in known}


def select(names, threads):
    """Return the peers with these names, bound to `threads`.

    Parameters
    ----------
    names : iterable of str or None
        None means every one that is installed; then what is missing is left out silently.
    threads : int

    Raises
    ------
    ValueError
        A name is unknown or its library not installed.
    """
    known = classes()
    if names is None:
        return [peer(threads) for peer in known.values() if peer.available()]
    chosen = []
    for name in names:
        if name not in known:
            raise ValueError(f"peer {name!r}: expected one of {', '.join(known)}")
        if not known[name].available():
            raise ValueError(f"peer {name!r}: package {known[name].package} is not installed")
        chosen.append(known[name](threads))
    return chosen
