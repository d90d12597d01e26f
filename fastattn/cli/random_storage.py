# SPDX-License-Identifier: MIT
"""Random problems in other clothes: 16-bit and narrow types, scales, pages, packed sequences.

A problem of `random_problems` is drawn first; then its values are rounded, cut into pages or
packed, as a second stream of random numbers of the same seed and index says. Types of ml_dtypes are
drawn where it is installed.
"""

from importlib.util import find_spec

import numpy as np

from fastattn._check_dtypes import named
from fastattn.cli.random_problems import (
    HALF_UNIT,
    RandomProblem,
    poison,
    poisoned,
    random_problem,
    strided,
    unused_keys,
)

PAGES = (1, 2, 3, 5, 8, 16, 17, 32, 64)
# Types of q and of K and V (None: as they were drawn).
TYPES = (
    *[(None, None)] * 4,
    *[("float16", "float16"), ("bfloat16", "bfloat16")] * 2,
    ("float32", "float16"),
    ("float32", "bfloat16"),
    ("float32", "int8"),
    ("float32", "float8_e4m3fn"),
    ("float16", "int8"),
    ("bfloat16", "int8"),
    ("bfloat16", "float8_e5m2"),
)
FORMS = ("dense", "pages", "pack", "paged pack")


def is_installed(dtype):
    """Say whether this name is that of a type here: bfloat16 and float8 are of ml_dtypes."""
    return hasattr(np, dtype) or find_spec("ml_dtypes") is not None


def stored_problem(seed, index, dtype=None):
    """Return the `RandomProblem` with this seed and index, stored in some way.

    Parameters
    ----------
    seed, index : int
    dtype : str, optional
        That of q, which `is_installed`; any, at random, if None.
    """
    problem = random_problem(seed, index, "float32" if dtype in HALF_UNIT else dtype)
    rng = np.random.default_rng([seed, index, 1])
    types = [
        (of_q or problem.dtype, of_kv or problem.dtype)
        for of_q, of_kv in TYPES
        if dtype in (None, of_q or problem.dtype)
    ]
    types = [pair for pair in types if all(map(is_installed, pair))]
    of_q, of_kv = types[rng.integers(len(types))]
    form = FORMS[rng.integers(len(FORMS))]
    if form == "dense" and of_q == of_kv == problem.dtype:
        return problem
    values = _Values(rng, problem, *(named(each) for each in (of_q, of_kv)))
    if form == "dense" or values.lead_rank > 1:  # pages count leading axes as one
        return values.dense()
    return values.pages() if form == "pages" else values.pack(form == "paged pack")


class _Values:
    """The values of a problem, rounded to other types, still to be stored.

    Attributes
    ----------
    q, k, v : ndarray
        In the layout of the problem.
    scales : dict
        k_scale and v_scale for narrow k and v.
    options : dict
        Of the problem, fit for the type of q.
    """

    def __init__(self, rng, problem, of_q, of_kv):
        self.rng, self.problem = rng, problem
        self.bshd = problem.options.get("layout") == "bshd"
        q, k, v = problem.clean
        self.q, self.scales = q.astype(of_q), {}
        self.lead_rank = max(q.ndim - 3, 0)
        if of_kv.itemsize > 1:
            self.k, self.v = k.astype(of_kv), v.astype(of_kv)
        else:
            self.k, self.scales["k_scale"] = self._narrow(k, of_kv)
            self.v, self.scales["v_scale"] = self._narrow(v, of_kv)
        self.options = dict(problem.options)
        mask = self.options.get("attn_mask")
        if mask is not None and mask.dtype != bool:
            of_mask = of_q if rng.random() < 0.5 or of_q == np.float64 else np.dtype(np.float32)
            self.options["attn_mask"] = mask.astype(of_mask)
        if "out" in self.options:
            self.options["out"] = np.full(self.options["out"].shape, np.nan, of_q)

    def logical(self, tensor):
        """View a tensor as (lead..., heads, sequence, depth)."""
        if tensor.ndim == 2:
            return tensor[None]
        return tensor.swapaxes(-3, -2) if self.bshd else tensor

    def _narrow(self, tensor, dtype):
        """Return values as a narrow type, and scales in one of the forms that there are."""
        *lead, heads, keys, _ = self.logical(tensor).shape
        shapes = [(), (heads,), (*lead, heads), (*lead, heads, keys)]
        scale = self.rng.uniform(0.5, 1.5, shapes[self.rng.integers(4)]).astype(np.float32)
        if dtype.kind != "i":
            return tensor.astype(dtype), scale
        return np.clip(np.rint(tensor * 40), -127, 127).astype(dtype), scale / np.float32(40)

    def dense(self):
        """The problem with these values, strides and poison drawn again."""
        rank, keys = self.logical(self.k).ndim, self.logical(self.k).shape[-2]
        unused = unused_keys(self.options, keys)
        axis = -3 if self.bshd else -2
        q, k, v = (strided(self.rng, tensor) for tensor in (self.q, self.k, self.v))
        spoiled = {
            name: poisoned(scale, unused, -1) if scale.ndim == rank - 1 else scale
            for name, scale in self.scales.items()
        }
        arrays = q, poisoned(k, unused, axis), poisoned(v, unused, axis)
        return self._problem(arrays, (q, k, v), self.options | spoiled, self.options | self.scales)

    def _problem(self, arrays, clean, options, clean_options, function="attention"):
        seed, index = self.problem.seed, self.problem.index
        return RandomProblem(seed, index, arrays, clean, options, clean_options, function)

    def _keys(self):
        """Return k, v and their scales for each key of B sequences: (B, heads, keys, ...)."""
        tensors = [self.logical(each) for each in (self.k, self.v)]
        shape = tensors[0].shape[:-1]
        for scale in self.scales.values():
            each_key = scale if scale.ndim in (0, len(shape)) else scale[..., None]
            tensors.append(np.broadcast_to(each_key, shape))
        if not self.lead_rank:
            return [each[None] for each in tensors]
        return [np.broadcast_to(each, (self.q.shape[0], *each.shape[1:])) for each in tensors]

    def _with_scales(self, options, stored):
        """Add scales to options: one for each key, as stored, or those that serve all sequences."""
        scales = zip(self.scales.items(), stored[2:], strict=True)
        return options | {name: each if own.ndim > 1 else own for (name, own), each in scales}

    def pages(self):
        """The problem with its keys cut into pages."""
        tensors = self._keys()
        batch, _, keys = tensors[0].shape[:3]
        options = {"kv_lengths": keys} | self.options
        page = int(self.rng.choice(PAGES))
        table, clean, spoiled = _cut(self.rng, tensors, page, *_ranges(options, batch))
        options["block_table"] = table
        mask = options.get("attn_mask")
        if mask is not None and mask.ndim and mask.shape[-1] == keys != 1:
            more = (*mask.shape[:-1], table.shape[1] * page - keys)
            options["attn_mask"] = np.concatenate([mask, np.ones(more, mask.dtype)], -1)
        if self.bshd:
            clean, spoiled = _swapped(clean), _swapped(spoiled)
        q = strided(self.rng, self.q)
        of_call, of_oracle = (self._with_scales(options, each) for each in (spoiled, clean))
        return self._problem((q, *spoiled[:2]), (q, *clean[:2]), of_call, of_oracle)

    def pack(self, paged):
        """Some queries and some keys of each sequence of the batch, in one pack."""
        tensors = self._keys()
        batch, _, keys = tensors[0].shape[:3]
        q = self.logical(self.q).reshape(batch, *self.logical(self.q).shape[-3:])
        rows, counts = (self.rng.integers(0, n + 1, batch) for n in (q.shape[2], keys))
        dropped = ("attn_mask", "out", "layout")
        options = {name: each for name, each in self.options.items() if name not in dropped}
        for name in {"kv_lengths", "kv_starts"} & {*options}:
            options[name] = np.minimum(options[name], counts)
        options["cu_seqlens_q"] = np.append(0, np.cumsum(rows))
        ranges = _ranges({"kv_lengths": counts} | options, batch)
        if paged:
            options.setdefault("kv_lengths", counts)
            page = int(self.rng.choice(PAGES))
            options["block_table"], clean, spoiled = _cut(self.rng, tensors, page, *ranges)
            clean, spoiled = _swapped(clean), _swapped(spoiled)
        else:
            options["cu_seqlens_k"] = np.append(0, np.cumsum(counts))
            clean = [_packed(each, counts) for each in tensors]
            spoiled = [_packed(_outside_poisoned(each, *ranges), counts) for each in tensors]
            clean[2:], spoiled[2:] = ([scale.T for scale in each[2:]] for each in (clean, spoiled))
        q = strided(self.rng, _packed(q, rows))
        of_call, of_oracle = (self._with_scales(options, each) for each in (spoiled, clean))
        arrays, oracle_arrays = (q, *spoiled[:2]), (q, *clean[:2])
        return self._problem(arrays, oracle_arrays, of_call, of_oracle, "attention_varlen")


def _ranges(options, batch):
    """First key and end of the keys of each sequence."""
    begin, end = options.get("kv_starts", 0), options["kv_lengths"]
    return [np.broadcast_to(np.ravel(each), batch) for each in (begin, end)]


def _packed(tensor, counts):
    """Return the first rows of (B, heads, rows, ...) as (sum of counts, heads, ...)."""
    parts = [each[:, :count] for each, count in zip(tensor, counts, strict=True)]
    return np.concatenate(parts, axis=1).swapaxes(0, 1)


def _outside_poisoned(tensor, begin, end):
    """Return a copy of (B, heads, keys, ...) with poison outside of a range of keys."""
    copy = tensor.copy()
    for own, first, last in zip(copy, begin, end, strict=True):
        own[:, :first] = own[:, max(first, last) :] = poison(copy.dtype)
    return copy


def _swapped(stored):
    """Return pages in the order (pages, page, heads, ...); scales stay as they are."""
    return [
        np.ascontiguousarray(each.swapaxes(1, 2)) if each.ndim == 4 else each for each in stored
    ]


def _cut(rng, tensors, page, begin, end):
    """Cut tensors (B, heads, keys, ...) into pages of random places.

    Returns
    -------
    table : ndarray, (B, blocks)
        What stands in it for blocks without a key is nonsense.
    clean, spoiled : list of ndarray
        Pages; `spoiled` is poisoned wherever no key of a sequence stands.
    """
    batch, _, keys = tensors[0].shape[:3]
    blocks = -(-keys // page) + int(rng.integers(2))
    count = batch * blocks + 1
    places = rng.permutation(count)[: batch * blocks].reshape(batch, blocks)
    clean = [np.zeros((count, t.shape[1], page, *t.shape[3:]), t.dtype) for t in tensors]
    spoiled = [np.full(pages.shape, poison(pages.dtype), pages.dtype) for pages in clean]
    table = rng.choice([-1, -(2**31), count, 2**31 - 1], (batch, blocks))
    for b in range(batch):
        for block in range(begin[b] // page, -(-end[b] // page) if begin[b] < end[b] else 0):
            table[b, block] = place = places[b, block]
            first, last = max(begin[b], block * page), min(end[b], (block + 1) * page)
            inside = slice(first - block * page, last - block * page)
            for pages in (clean, spoiled):
                for each, tensor in zip(pages, tensors, strict=True):
                    each[place, :, inside] = tensor[b, :, first:last]
    return table.astype(rng.choice([np.int32, np.int64])), clean, spoiled
