# SPDX-License-Identifier: MIT
"""Other implementations of attention behind one small interface.

To add a library: subclass `Peer` in a module of its own, import what it needs inside the methods,
and name the class in `classes`. `checking.check` compares its result with the oracle before the
clock starts; there is no figure for a wrong result.
"""

import contextvars
import dataclasses
import functools
import importlib.metadata
import importlib.util

import numpy as np

from fastattn.measure import inputs as arrays
from fastattn.measure.masking import additive_mask

EVERYTHING = frozenset(
    {
        "grouped heads", "values of another depth", "window", "softcap", "sinks",
        "packed sequences", "two masks",
    }
)  # fmt: skip
UNKNOWN = "unknown"  # version of a library whose distribution has another name


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
    dtypes : tuple of str
        Of queries, keys and values that it computes with.
    features : frozenset of str
        What of `Problem.features` it can do.
    on_request : bool
        Left out unless it is named, because preparing it takes minutes.
    """

    name = ""
    package = ""
    module = ""  # import name, if it is not the distribution's
    dtypes: tuple = ("float32",)
    features: frozenset = frozenset()
    on_request = False

    def __init__(self, threads):
        self.threads = threads

    @property
    def version(self):
        """Version of the library, `UNKNOWN` if no distribution of that name is installed."""
        try:
            return importlib.metadata.version(self.package)
        except importlib.metadata.PackageNotFoundError:
            return UNKNOWN

    @classmethod
    def available(cls):
        """Whether the library is installed (it is not imported)."""
        return importlib.util.find_spec(cls.module or cls.package) is not None

    def supports(self, problem):
        """Return None, or the reason why this library has no answer to `problem`."""
        if problem.dtype not in self.dtypes:
            return f"{' and '.join(self.dtypes)} only"
        if problem.kv_dtype != problem.dtype:
            return f"no {problem.kv_dtype} K and V"
        for feature in problem.features:
            if feature not in self.features:
                return f"no {feature}"
        return None

    def prepare(self, problem, inputs):
        """Return `Prepared`; conversions of layout and types happen here, untimed."""
        raise NotImplementedError

    def prepare_each(self, problem, inputs):
        """Return `Prepared` of packed sequences as one call after the other.

        For libraries that know no packed sequences; each has contiguous arrays of its own.
        """
        parts = [arrays.sequence(problem, inputs, n) for n in range(len(problem.packed))]
        ready = [self.prepare(*part) for part in parts]
        calls = [each.call for each in ready]

        def array(results):
            each = [one.array(result) for one, result in zip(ready, results, strict=True)]
            return np.concatenate(each, axis=2)

        return Prepared(lambda: [call() for call in calls], array, keep=(parts, ready))


class Fastattn(Peer):
    """This package, on its chosen ISA or a forced one, with some precision of float32."""

    name = package = "fastattn"

    def __init__(self, threads, isa=None, precision="highest"):
        super().__init__(threads)
        self.isa, self.precision = isa, precision
        words = [word for word in (isa, precision) if word not in (None, "highest")]
        self.name = "-".join(["fastattn", *words])

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

        if problem.packed:
            return self._prepare_packed(problem, inputs)
        q, k, v = inputs.q, inputs.k, inputs.v
        options = self._options(problem, inputs)
        if inputs.mask is not None:
            options["attn_mask"] = inputs.mask
        if inputs.kv_lengths is not None:
            # The queries of a padded batch stand at the left, like the keys.
            options |= {"kv_lengths": inputs.kv_lengths, "q_offset": problem.Sk - problem.Sq}
        attention = fastattn.attention
        return Prepared(self._forced(lambda: attention(q, k, v, **options)))

    def _options(self, problem, inputs):
        options = {"num_threads": self.threads}
        if self.precision != "highest":
            options["precision"] = self.precision
        if problem.causal:
            options["causal"] = True
        if problem.window >= 0:
            options["window_size"] = (problem.window, -1)
        if problem.softcap:
            options["softcap"] = problem.softcap
        if inputs.slopes is not None:
            options["alibi_slopes"] = inputs.slopes
        if inputs.sinks is not None:
            options["sinks"] = inputs.sinks
        if inputs.scale is not None:
            options |= {"k_scale": inputs.scale, "v_scale": inputs.scale}
        return options

    def _prepare_packed(self, problem, inputs):
        import fastattn

        options = self._options(problem, inputs)
        q, k, v = (each[0].swapaxes(0, 1) for each in (inputs.q, inputs.k, inputs.v))
        ends = np.cumsum([(0, 0), *problem.packed], axis=0)
        starts = [np.ascontiguousarray(ends[:, n]) for n in (0, 1)]
        attention = fastattn.attention_varlen
        call = self._forced(lambda: attention(q, k, v, *starts, **options))
        return Prepared(call, lambda out: out.swapaxes(0, 1)[None])

    def _forced(self, call):
        """Return `call` on the instruction set that was asked for."""
        import fastattn

        if self.isa is None:
            return call
        # A context of its own: a ``with`` block in every call would be timed along.
        with fastattn.use_isa(self.isa):
            context = contextvars.copy_context()
        return functools.partial(context.run, call)


class NumPy(Peer):
    """softmax(q k^T) v as it is written with NumPy, one head at a time, in place."""

    name = package = "numpy"
    dtypes = ("float32", "float64")
    features = EVERYTHING
    most_scores = 1 << 28  # nobody would wait for more

    def supports(self, problem):
        """Everything but score tables of gigabytes."""
        scores = problem.B * problem.Hq * problem.Sq * problem.Sk
        return "too large" if scores > self.most_scores else super().supports(problem)

    def prepare(self, problem, inputs):
        """Fold everything that forbids into one additive mask per batch entry."""
        if problem.packed:
            return self.prepare_each(problem, inputs)
        _limit_blas(self.threads)
        added = additive_mask(problem, inputs, causal=True)
        q, v = inputs.q, inputs.v
        group = problem.Hq // problem.Hkv
        scale = q.dtype.type(problem.D**-0.5)
        transposed = inputs.k.swapaxes(-1, -2)
        cap, sinks = q.dtype.type(problem.softcap), inputs.sinks

        def call():
            out = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype)
            for b, h in np.ndindex(q.shape[:2]):
                s = (q[b, h] * scale) @ transposed[b, h // group]
                if cap:
                    s = np.tanh(s / cap, out=s) * cap
                if added is not None:
                    s += added[b if len(added) > 1 else 0, 0]
                top = s.max(-1, keepdims=True)
                np.exp(s - top, out=s)
                total = s.sum(-1, keepdims=True)
                if sinks is not None:
                    total += np.exp(sinks[h] - top)
                np.matmul(s, v[b, h // group], out=out[b, h])
                out[b, h] /= total
            return out

        return Prepared(call)


def _limit_blas(threads):
    """Bind NumPy's BLAS to `threads`, if threadpoolctl is installed (there is no other way)."""
    if importlib.util.find_spec("threadpoolctl") is not None:
        import threadpoolctl

        threadpoolctl.threadpool_limits(threads, user_api="blas")


def classes():
    """Return {name: class} of every peer known, installed or not; this package comes first."""
    from fastattn.measure.peer_jax import Jax
    from fastattn.measure.peer_onnxruntime import OnnxAttention, OnnxGrouped, OnnxMultiHead
    from fastattn.measure.peer_openvino import OpenVINO
    from fastattn.measure.peer_torch import Flex, Torch
    from fastattn.measure.peer_vllm import VLLM

    known = [NumPy, Torch, Flex, OnnxAttention, OnnxMultiHead, OnnxGrouped, OpenVINO, Jax, VLLM]
    return {peer.name: peer for peer in known}


def select(names, threads):
    """Return the peers with these names, bound to `threads`.

    Parameters
    ----------
    names : iterable of str or None
        None means every one that is installed and not `on_request`.
    threads : int

    Raises
    ------
    ValueError
        A name is unknown or its library not installed.
    """
    known = classes()
    if names is None:
        wanted = [peer for peer in known.values() if not peer.on_request]
        return [peer(threads) for peer in wanted if peer.available()]
    chosen = []
    for name in names:
        if name not in known:
            raise ValueError(f"peer {name!r}: expected one of {', '.join(known)}")
        if not known[name].available():
            raise ValueError(f"peer {name!r}: package {known[name].package} is not installed")
        chosen.append(known[name](threads))
    return chosen
