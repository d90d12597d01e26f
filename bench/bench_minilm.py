# SPDX-License-Identifier: MIT
"""all-MiniLM-L6-v2, six layers on a batch of sentences: fastattn inside against NumPy inside.

Everything outside attention is the same NumPy code (fastattn/cli/minilm.py), so the totals differ
by attention alone: by its own time, and by how long its threads keep spinning on the cores that the
next matrix product wants. Run as a script it interleaves the repeats of the two functions and
prints a table; under pytest-benchmark each function is one case of a group.

    python bench/bench_minilm.py --sentences 32 --repeats 7
    pytest bench/bench_minilm.py
"""

import argparse
import functools
import statistics
import time

import numpy as np
import pytest
from conftest import annotate

import fastattn
from fastattn.cli import minilm

# Encoded one by one they have 9 to 40 tokens: as a batch about two fifths is padding.
TEXT = [
    "The harbour was quiet when the last ferry came in.",
    "Most of the passengers had slept through the crossing, and those who had not stood along the "
    "rail with their collars up and watched the lights of the town grow slowly out of the fog.",
    "A customs officer waved the cars through one after the other.",
    "Nobody asked about the three crates in the blue van, although each of them was large enough "
    "to hold a piano and had been tied down with more rope than a piano would ever need.",
    "By morning the fog had lifted.",
    "The baker on the square, who opened before everyone else, was the first to notice that the "
    "clock on the town hall had stopped at ten minutes past four.",
    "Repairs were expected to take a week.",
    "In the meantime the council borrowed a bell from the school, and a boy was paid to ring it at "
    "every full hour between breakfast and supper.",
]
TOKENS = 128
ATTENTIONS = {"numpy": minilm.numpy_attention, "fastattn": fastattn.attention}


class Timed:
    """An attention function that adds up the seconds spent in it."""

    def __init__(self, function):
        self.function = function
        self.seconds = 0.0

    def __call__(self, *arrays, **options):
        begin = time.perf_counter()
        out = self.function(*arrays, **options)
        self.seconds += time.perf_counter() - begin
        return out


def workload(encoder, name, sentences):
    """Return ids and lengths: "padded" is one sentence a row, "full" rows of 128 real tokens."""
    text = [TEXT[index % len(TEXT)] for index in range(sentences)]
    ids, lengths = encoder.tokenize(text)
    if name == "full":
        real = np.concatenate([row[:length] for row, length in zip(ids, lengths, strict=True)])
        ids, lengths = np.resize(real, (sentences, TOKENS)), np.full(sentences, TOKENS)
    return ids, lengths


def measure(encoder, ids, lengths, repeats):
    """Return {name: (median seconds of the layers, median seconds in attention)}, interleaved."""
    x = encoder.embeddings(ids)
    samples = {name: [] for name in ATTENTIONS}
    for repeat in range(repeats + 1):
        for name, function in ATTENTIONS.items():
            timed = Timed(function)
            begin = time.perf_counter()
            encoder.hidden(x, lengths, timed)
            # The first round fills caches, thread pools and scratch buffers; it does not count.
            if repeat:
                samples[name].append((time.perf_counter() - begin, timed.seconds))
    return {
        name: tuple(statistics.median(column) for column in zip(*rows, strict=True))
        for name, rows in samples.items()
    }


def report(name, ids, lengths, medians):
    """Print one workload's table, each ratio relative to NumPy attention."""
    padding = 1 - lengths.sum() / ids.size
    print(f"{name}: {len(ids)} rows of {ids.shape[1]} tokens, {padding:.0%} padding")
    print("  attention    layers ms   attention ms   share   layers   attention")
    base_layers, base_attention = medians["numpy"]
    for function, (layers, attention) in medians.items():
        print(
            f"  {function:10} {layers * 1e3:11.1f} {attention * 1e3:14.2f} "
            f"{attention / layers:7.1%} {base_layers / layers:7.2f}x "
            f"{base_attention / attention:9.2f}x"
        )


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=int, default=32, help="rows of the batch")
    parser.add_argument("--repeats", type=int, default=7, help="timed rounds; the median counts")
    options = parser.parse_args(arguments)
    encoder = minilm.Encoder()
    print(
        f"all-MiniLM-L6-v2: {len(encoder.layers)} layers, {encoder.heads} heads of depth 32"
        f" · float32 · isa {fastattn.isa()} · threads {fastattn.get_num_threads()}"
    )
    for name in ("full", "padded"):
        ids, lengths = workload(encoder, name, options.sentences)
        report(name, ids, lengths, measure(encoder, ids, lengths, options.repeats))


@pytest.fixture(scope="module")
def encoder():
    return minilm.Encoder()


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("name", ["full", "padded"])
def test_minilm(benchmark, encoder, name, attention, threads):
    """Time the six layers; `attention_ms` in the extra columns is attention's part of it."""
    function = ATTENTIONS[attention]
    if attention == "fastattn":
        function = functools.partial(function, num_threads=threads)
    ids, lengths = workload(encoder, name, 32)
    x, timed = encoder.embeddings(ids), Timed(function)
    benchmark.group = f"minilm {name} {ids.shape[0]}x{ids.shape[1]}"
    rounds, warmup = 5, 1
    benchmark.pedantic(encoder.hidden, (x, lengths, timed), rounds=rounds, warmup_rounds=warmup)
    benchmark.extra_info["attention_ms"] = timed.seconds / (rounds + warmup) * 1e3
    annotate(benchmark, 0, fastattn.isa(), "float32", threads)


if __name__ == "__main__":
    main()
