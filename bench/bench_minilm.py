# SPDX-License-Identifier: MIT
"""all-MiniLM-L6-v2 on a batch of sentences: fastattn inside against NumPy attention inside, packed
against padded, and against sentence-transformers where that is installed.

Everything outside attention is the same NumPy code (fastattn.models), so the first two differ
by attention alone: by its own time, and by how long its threads keep spinning on the cores that the
next matrix product wants. Run as a script it interleaves the repeats and prints tables; under
pytest-benchmark each way is one case of a group.

    python bench/bench_minilm.py --sentences 64 --repeats 7
    pytest bench/bench_minilm.py
"""

import argparse
import importlib.util
import statistics
import time

import numpy as np
import pytest
from arguments import at_least
from conftest import annotate

import fastattn
from fastattn.cli import minilm
from fastattn.layers import pack, pad

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


def workload(model, name, sentences):
    """Return the tokens of each sentence; "full" is rows of 128 tokens, so that none is padded."""
    rows = model.tokenize([TEXT[index % len(TEXT)] for index in range(sentences)])
    if name == "full":
        rows = list(np.resize(np.concatenate(rows), (sentences, TOKENS)))
    return rows


def ways(model, rows):
    """Return {name: function}: each runs the layers; padded ones return attention's seconds."""
    ids, lengths = pad(rows)
    tokens, cu_seqlens = pack(rows)

    def padded(attention):
        timed = Timed(attention)
        model(ids, lengths=lengths, attention=timed)
        return timed.seconds

    def packed():
        model(tokens, cu_seqlens=cu_seqlens)

    return {
        "numpy": lambda: padded(minilm.numpy_attention),
        "fastattn": lambda: padded(fastattn.attention),
        "fastattn packed": packed,
    }


def measure(functions, repeats):
    """Return {name: (median seconds in all, median of what the function returned)}, interleaved."""
    samples = {name: [] for name in functions}
    for repeat in range(repeats + 1):
        for name, function in functions.items():
            begin = time.perf_counter()
            returned = function()
            # The first round fills caches, thread pools and scratch buffers; it does not count.
            if repeat:
                samples[name].append((time.perf_counter() - begin, returned or 0.0))
    return {
        name: tuple(statistics.median(column) for column in zip(*rows, strict=True))
        for name, rows in samples.items()
    }


def report(name, rows, medians):
    """Print one workload's table, each ratio relative to NumPy attention."""
    tokens, longest = sum(map(len, rows)), max(map(len, rows))
    padding = 1 - tokens / (len(rows) * longest)
    print(f"{name}: {len(rows)} rows of up to {longest} tokens, {padding:.0%} padding")
    print("  way                layers ms   attention ms   share   layers   attention")
    base_layers, base_attention = medians["numpy"]
    for way, (layers, attention) in medians.items():
        line = f"  {way:16} {layers * 1e3:11.1f}"
        if attention:
            line += f" {attention * 1e3:14.2f} {attention / layers:7.1%}"
        else:
            line += f" {'':14} {'':7}"
        line += f" {base_layers / layers:7.2f}x"
        print(line + (f" {base_attention / attention:9.2f}x" if attention else ""))


def compare_with_sentence_transformers(model, sentences, repeats):
    """Print texts to vectors, tokenizer and all, beside sentence-transformers on torch."""
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(fastattn.get_num_threads())
    theirs = SentenceTransformer(str(minilm.find_directory()), device="cpu")
    # Sentences of one to four parts, 9 to 150 tokens, in no order.
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(TEXT, size)) for size in rng.integers(1, 5, sentences)]
    functions = {
        "sentence-transformers": lambda: theirs.encode(texts) is None,
        "fastattn": lambda: model.encode(texts) is None,
    }
    medians = measure(functions, repeats)
    off = np.abs(model.encode(texts) - theirs.encode(texts)).max()
    print(f"texts to vectors: {sentences} sentences, greatest difference {off:.1e}")
    for name, (seconds, _) in medians.items():
        ratio = medians["sentence-transformers"][0] / seconds
        print(f"  {name:22} {seconds * 1e3:9.1f} ms {ratio:7.2f}x")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sentences", type=at_least(1), default=64, help="rows of the batch")
    parser.add_argument(
        "--repeats", type=at_least(1), default=7, help="timed rounds; the median counts"
    )
    options = parser.parse_args(arguments)
    model = minilm.load()
    print(
        f"all-MiniLM-L6-v2: {len(model.encoder.layers)} layers, 12 heads of depth 32"
        f" · float32 · isa {fastattn.isa()} · threads {fastattn.get_num_threads()}"
    )
    for name in ("full", "padded"):
        rows = workload(model, name, options.sentences)
        report(name, rows, measure(ways(model, rows), options.repeats))
    if importlib.util.find_spec("sentence_transformers"):
        compare_with_sentence_transformers(model, options.sentences, options.repeats)
    else:
        print("texts to vectors: sentence-transformers is not installed")


@pytest.fixture(scope="module")
def model():
    return minilm.load()


@pytest.mark.parametrize("way", ["numpy", "fastattn", "fastattn packed"])
@pytest.mark.parametrize("name", ["full", "padded"])
def test_minilm(benchmark, model, name, way, threads):
    """Time the six layers; `attention_ms` in the extra columns is attention's part of it."""
    rows = workload(model, name, 32)
    function, seconds = ways(model, rows)[way], []
    benchmark.group = f"minilm {name} {len(rows)}x{max(map(len, rows))}"
    with fastattn.num_threads(threads):
        benchmark.pedantic(lambda: seconds.append(function()), rounds=5, warmup_rounds=1)
    benchmark.extra_info["attention_ms"] = statistics.median(each or 0.0 for each in seconds) * 1e3
    annotate(benchmark, 0, fastattn.isa(), "float32", threads)


if __name__ == "__main__":
    main()
