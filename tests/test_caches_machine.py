# SPDX-License-Identifier: MIT
"""Caches and their copies, in any order of calls: each holds its own tokens (hypothesis)."""

import copy
import pickle

import cases
import hypothesis.strategies as st
import numpy as np
import pytest
from cache_cases import DEPTH, HEADS, VALUE_DEPTH, logical, read_back, tokens
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

import fastattn

SETTINGS = settings(
    max_examples=20,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
)


def read_only(cache):
    """Return a cache such as one of a file that is mapped to be read only."""
    state = {name: array.copy() for name, array in cache.state().items()}
    for array in state.values():
        array.flags.writeable = False
    return type(cache).from_state(state)


COPIES = {
    "deepcopy": copy.deepcopy,
    "pickle 4": lambda cache: pickle.loads(pickle.dumps(cache, 4)),
    "pickle 5": lambda cache: pickle.loads(pickle.dumps(cache, 5)),
    "load": read_back,
    "read-only": read_only,
}
SEEDS = st.integers(0, 2**32)


class Pair:
    """A cache and its model: of each sequence k, v and their scales, (heads, tokens, ...)."""

    def __init__(self, cache, model, writable=True):
        self.cache, self.model, self.writable = cache, model, writable

    def held(self, name):
        """What the cache has of a sequence, as the model has it."""
        cache = self.cache
        arrays = [logical(cache.k, cache.layout), logical(cache.v, cache.layout)]
        arrays += [] if cache.k_scale is None else [cache.k_scale, cache.v_scale]
        if isinstance(cache, fastattn.KVCache):
            return [array[name, :, : cache.lengths[name]] for array in arrays]
        [pages], places = cache.block_table(name), np.arange(cache.length(name))
        places = pages[places // cache.page_size], places % cache.page_size
        return [array[places[0], :, places[1]].swapaxes(0, 1) for array in arrays]


class Machine(RuleBasedStateMachine):
    kind: str
    dtype: np.dtype
    layout: str
    pairs = Bundle("pairs")

    @initialize(target=pairs)
    def begin(self):
        sizes = {"kv_heads": HEADS, "depth": DEPTH, "value_depth": VALUE_DEPTH}
        options = {"dtype": self.dtype, "layout": self.layout}
        if self.kind == "dense":
            cache, names = fastattn.KVCache(2, capacity=12, **sizes, **options), [0, 1]
        else:
            cache = fastattn.PagedKVCache(12, 3, **sizes, **options)
            names = [cache.new(), cache.new()]
        pair = Pair(cache, {})
        pair.model = {name: pair.held(name) for name in names}
        self.all = [pair]
        return pair

    @rule(pair=pairs, counts=st.tuples(*[st.integers(0, 5)] * 2), seed=SEEDS)
    def append(self, pair, counts, seed):
        cache, names = pair.cache, list(pair.model)[:2]
        k, v = tokens(np.random.default_rng(seed), 2, 5, self.layout)
        first = () if self.kind == "dense" else (names,)
        try:
            cache.append(*first, k, v, lengths=counts)
        except ValueError as error:
            assert pair.writable == ("read-only" not in str(error))  # nor has it room
            return
        assert pair.writable
        new = [logical(k, self.layout), logical(v, self.layout)]
        if cache.k_scale is None:
            new = [each.astype(self.dtype) for each in new]
        else:
            new = fastattn.quantize_kv(*new, self.dtype)
        for b, (name, count) in enumerate(zip(names, counts, strict=True)):
            pairs = zip(pair.model[name], new, strict=True)
            pair.model[name] = [np.concatenate([a, n[b, :, :count]], axis=1) for a, n in pairs]

    @rule(pair=pairs, lengths=st.tuples(*[st.integers(0, 12)] * 2))
    def truncate(self, pair, lengths):
        kept = {}
        for name, most in zip(list(pair.model)[:2], lengths, strict=True):
            kept[name] = min(most, pair.model[name][0].shape[1])
            pair.model[name] = [each[:, : kept[name]] for each in pair.model[name]]
        if self.kind == "dense":
            pair.cache.truncate(list(kept.values()))
        else:
            for name, length in kept.items():
                pair.cache.truncate(name, length)

    @rule(pair=pairs, which=st.integers(0, 1))
    def replace(self, pair, which):
        """Put a fork in the place of a sequence; of a dense cache, forget all."""
        if self.kind == "dense":
            pair.cache.reset()
            pair.model = {name: [each[:, :0] for each in held] for name, held in pair.model.items()}
        else:
            names = list(pair.model)
            pair.model[pair.cache.fork(names[which])] = pair.model[names[which]]
            pair.cache.free(names[0])
            del pair.model[names[0]]

    @rule(target=pairs, pair=pairs, how=st.sampled_from(list(COPIES)))
    def another(self, pair, how):
        self.all.append(Pair(COPIES[how](pair.cache), dict(pair.model), how != "read-only"))
        return self.all[-1]

    @rule(pair=pairs, seed=SEEDS, causal=st.booleans())
    def attend(self, pair, seed, causal):
        names = list(pair.model)
        q = cases.normal(np.random.default_rng(seed), 2, 4, 3, DEPTH)
        first = () if self.kind == "dense" else (names,)
        given = {"causal": causal, "return_lse": True}
        out, lse = pair.cache.attend(*first, logical(q, self.layout), **given)
        for b, name in enumerate(names):
            k, v, *scales = (each[None] for each in pair.model[name])
            scales = dict(zip(("k_scale", "v_scale"), scales, strict=False))
            result = logical(out, self.layout)[b : b + 1], lse[b : b + 1]
            cases.check(result, q[b : b + 1], k, v, causal=causal, **scales)

    @invariant()
    def each_holds_its_own_tokens(self):
        for pair in getattr(self, "all", []):
            for name, expected in pair.model.items():
                for found, each in zip(pair.held(name), expected, strict=True):
                    np.testing.assert_array_equal(found, each)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
@pytest.mark.parametrize("kind", ["dense", "paged"])
def test_any_calls_of_copies(kind, dtype):
    layout = "bshd" if dtype == "int8" else "bhsd"
    facts = {"kind": kind, "dtype": np.dtype(dtype), "layout": layout}
    run_state_machine_as_test(type("Machine", (Machine,), facts), settings=SETTINGS)
