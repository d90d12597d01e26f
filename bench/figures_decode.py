# SPDX-License-Identifier: MIT
"""Sections of the report about decoding: few queries, long caches, layouts, packed sequences."""

import dataclasses

import memory
import numpy as np
from figure import Figure, beside, measured_rows
from figures_narrow import named

import fastattn
from fastattn import _aligned as aligned
from fastattn.measure import checking, peers, runner, suites, timing
from fastattn.measure.problems import Problem

PEERS = ("torch", "ort-attention", "ort-gqa", "vllm")
ROWS = (1, 2, 4, 8, 12, 16)
PAGES = (16, 64, 128)
PAGED_TYPES = ("float32", "float16")
SHAPE = {"Hq": 8, "Hkv": 8, "D": 128}


def decode(settings):
    """One query against a long cache: share of a plain read of the same K and V, every group."""
    keys = settings.length(32768, 2048)
    rows = measured_rows(settings, suites.decode_grid(keys), PEERS)
    figures = []
    for row in rows:
        if not row.measured:
            continue
        problem = row.problem
        group = problem.Hq // problem.Hkv
        name = f"decode {problem.label}"
        share = row.share(bound=runner.READ)
        figures.append(Figure(f"{name}, share of bandwidth", share, "%", at_least=0.8))
        goals = {"torch": 3.0 if group >= 4 else 1.0 if group == 1 else None, "vllm": 1.0}
        figures += [
            Figure(f"{name} against {peer}", row.ratio(peer), at_least=goals[peer])
            for peer in row.peers
            if peer in goals
        ]
    return figures, rows


def caches(settings):
    """Several rows of queries, layouts, packed sequences, a cache larger than memory, and what is
    beside the products of a short call.
    """
    keys = settings.length(16384, 2048)
    alone = Problem(Sk=keys, **SHAPE)
    figures = _query_rows(settings, alone, f"{keys} keys", at_most=1.3)
    figures += _query_rows(settings, named(alone, "bfloat16", "int8"), f"{keys} keys of int8")
    for dtype in PAGED_TYPES:
        figures += _layouts(settings, keys, dtype)
    return [*figures, *_packed(settings), *_mapped(settings), *_short(settings)], []


def _query_rows(settings, problem, name, at_most=None):
    """Time of several query rows relative to one, on the very same cache."""
    inputs = dataclasses.replace(problem, Sq=max(ROWS)).inputs()
    calls = {}
    for count in ROWS:
        part = dataclasses.replace(problem, Sq=count)
        own = dataclasses.replace(inputs, q=aligned.copy(inputs.q[:, :, :count]))
        prepared = peers.Fastattn(settings.threads).prepare(part, own)
        checking.check(prepared, part, own)
        calls[count] = prepared.call
    run = timing.interleave(calls, seconds=settings.seconds)
    return [
        Figure(f"decode {name}, {count} rows / 1", 1 / run.ratio(count, 1), at_most=at_most)
        for count in ROWS[1:]
    ]


def paged(array, page, order):
    """Return K or V of one sequence, (1, H, S, D), as shuffled pages (pages, H, page, D)."""
    _, heads, keys, depth = array.shape
    pages = array.reshape(heads, keys // page, page, depth).swapaxes(0, 1)
    return aligned.copy(pages[order])


def _layouts(settings, keys, dtype):
    """Time over shuffled pages, and over heads side by side, relative to the dense cache with heads
    apart; the results have the same bits.
    """
    problem = Problem(Hq=32, Hkv=8, Sq=1, Sk=keys, D=128, dtype=dtype)
    inputs = problem.inputs()
    options = {"num_threads": settings.threads}
    calls = {"dense": lambda: fastattn.attention(inputs.q, inputs.k, inputs.v, **options)}
    expected = calls["dense"]()
    rng = np.random.default_rng(0)
    for page in PAGES:
        order = rng.permutation(keys // page)
        table = np.argsort(order).astype(np.int32)[None]
        k, v = (paged(each, page, order) for each in (inputs.k, inputs.v))
        calls[page] = lambda k=k, v=v, table=table: fastattn.attention(
            inputs.q, k, v, block_table=table, **options
        )
    k, v = beside(inputs.k), beside(inputs.v)
    calls["beside"] = lambda: fastattn.attention(inputs.q, k, v, **options)
    for call in calls.values():
        np.testing.assert_array_equal(call(), expected)
    run = timing.interleave(calls, seconds=settings.seconds)
    name = f"dense, {keys} keys" + (f" {dtype}" if dtype != "float32" else "")
    figures = [Figure(f"heads side by side / {name}", 1 / run.ratio("beside", "dense"))]
    return figures + [
        Figure(f"pages of {page} / {name}", 1 / run.ratio(page, "dense"), at_most=1.05)
        for page in PAGES
    ]


def _packed(settings):
    """Time of 64 sequences in one call relative to that of their single calls on one thread."""
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, settings.length(4096, 256) + 1, 64)
    problem = Problem(
        Hq=8, Hkv=2, D=128, causal=True, packed=tuple((1, int(keys)) for keys in lengths)
    )
    inputs = problem.inputs()
    whole = peers.Fastattn(settings.threads).prepare(problem, inputs)
    checking.check(whole, problem, inputs)
    parts = peers.Fastattn(1).prepare_each(problem, inputs)
    run = timing.interleave({"one": whole.call, "each": parts.call}, seconds=settings.seconds)
    time = settings.threads * run.ratio("each", "one")
    name = "64 packed sequences / their single calls on one thread, shared by the threads"
    return [Figure(name, time, at_most=1.15)]


def _mapped(settings):
    """A million keys of one kv head from a file: speed, and memory that is not the file's."""
    keys = settings.length(1 << 20, 1 << 14)
    used = memory.in_subprocess(keys, depth=128, mapped=True, threads=settings.threads)
    name = f"{keys} keys memory-mapped"
    figures = [Figure(f"{name}, memory", used["bytes"] / 2**20, "MiB", at_most=64.0)]
    return [*figures, Figure(f"{name}, speed", used["rate"] / 1e9, "GB/s")]


def _short(settings):
    """Time of a step over 16 keys with scales, pages and the like, relative to the plain one."""
    problem = Problem(Hq=32, Hkv=8, Sq=1, Sk=16, D=64, dtype="float16")
    inputs = problem.inputs()
    q, k, v = inputs.q, inputs.k, inputs.v
    narrow_k, narrow_v, *_ = fastattn.quantize_kv(k, v, np.int8)
    scales, sinks = np.full(8, 0.01, np.float32), np.zeros(32, np.float32)
    table, lengths = np.zeros((1, 1), np.int32), np.array([16])
    packed = [aligned.copy(each[0].swapaxes(0, 1)) for each in (q, k, v)]
    cuts = np.array([0, 1], np.int32), np.array([0, 16], np.int32)
    cache = fastattn.PagedKVCache(1, 16, kv_heads=8, depth=64, dtype=np.float16)
    sequence = cache.new()
    cache.append(sequence, k, v)

    def step(k, v, **given):
        return lambda: fastattn.attention(q, k, v, num_threads=1, **given)

    calls = {
        "plain": step(k, v),
        "int8 with scales of heads": step(narrow_k, narrow_v, k_scale=scales, v_scale=scales),
        "sinks": step(k, v, sinks=sinks),
        "pages": step(k, v, block_table=table, kv_lengths=lengths),
        "PagedKVCache.attend": lambda: cache.attend(sequence, q, num_threads=1),
        "packed": lambda: fastattn.attention_varlen(*packed, *cuts, num_threads=1),
    }
    for name in ("pages", "PagedKVCache.attend"):
        np.testing.assert_array_equal(calls[name](), calls["plain"]())
    run = timing.interleave(calls, seconds=settings.seconds)
    names = [name for name in calls if name != "plain"]
    return [Figure(f"16 keys, {name} / plain", 1 / run.ratio(name, "plain")) for name in names]
