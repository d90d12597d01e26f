# SPDX-License-Identifier: MIT
"""Named lists of problems."""

import dataclasses
import functools

import numpy as np

from fastattn._check_dtypes import NARROW
from fastattn.measure.problems import MASKS, Problem

LENGTHS = (256, 512, 1024, 2048, 4096)
DEPTHS = (64, 128)
HEADS = 8
GROUPS = (1, 3, 4, 5, 7, 8)  # query heads for each kv head, of today's models
SHARES = (0.125, 0.25, 0.5, 0.75, 1.0)  # allowed, of a mask

TINY = Problem("tiny 1x12x16x64", Hq=12, Sq=16, D=64)
MINILM = Problem("MiniLM 32x12x128x32", B=32, Hq=12, Sq=128, D=32)
PADDED = Problem("padded 32x12x128x32", B=32, Hq=12, Sq=128, D=32, padded=True)


def prefill(causal=False, lengths=LENGTHS, depths=DEPTHS, dtype="float32"):
    """Return the prefill grid: batch 1, 8 heads, every length with every depth."""
    return [
        Problem(Hq=HEADS, Sq=length, D=depth, causal=causal, dtype=dtype)
        for depth in depths
        for length in lengths
    ]


def masks(length=2048, dtype="float32"):
    """Return the same problem without a mask, causal, and with each kind of mask."""
    base = Problem(Hq=HEADS, Sq=length, D=64, dtype=dtype)
    variants = [dataclasses.replace(base, name="", mask=mask) for mask in MASKS]
    return [*variants, dataclasses.replace(base, name="", causal=True)]


def mask_shares(length=2048, dtype="float32"):
    """Return the same problem with more and more of its blocks allowed."""
    base = Problem(Hq=HEADS, Sq=length, D=64, mask="blocks", dtype=dtype)
    return [dataclasses.replace(base, name="", allowed=share) for share in SHARES]


def all_masks(dtype="float32"):
    """Return `masks` and `mask_shares`, nothing twice."""
    return list(dict.fromkeys([*masks(dtype=dtype), *mask_shares(dtype=dtype)]))


def small(dtype="float32"):
    """Return the problems of which overhead is a good part."""
    return [dataclasses.replace(problem, dtype=dtype) for problem in (TINY, MINILM, PADDED)]


def short(dtype="float32"):
    """Return four problems that give a first impression."""
    grid = [*prefill(lengths=(512, 1024), depths=(64,), dtype=dtype)]
    causal = prefill(causal=True, lengths=(1024,), depths=(64,), dtype=dtype)
    return [dataclasses.replace(TINY, dtype=dtype), *grid, *causal]


def decode_grid(keys=32768, dtype="float32"):
    """Return one query against a long cache, for every group size; one kv head; a batch."""
    wide = [
        Problem(Hq=8 * group, Hkv=8, Sq=1, Sk=keys, D=128, dtype=dtype)
        for group in GROUPS
    ]  # fmt: skip
    others = [(1, 8, 1, keys), (8, 32, 8, keys // 16), (1, 32, 32, keys // 8)]
    return wide + [
        Problem(B=B, Hq=Hq, Hkv=Hkv, Sq=1, Sk=Sk, D=128, dtype=dtype) for B, Hq, Hkv, Sk in others
    ]


def decode(dtype="float32"):
    """Return `decode_grid` of 8192 keys, and several query rows for each kv head."""
    base = Problem(Hq=8, Hkv=8, Sq=1, Sk=8192, D=128, dtype=dtype)
    rows = [dataclasses.replace(base, name="", Sq=tokens) for tokens in (4, 16)]
    return [*decode_grid(8192, dtype), *rows]


def mixed_lengths(count=64, most=4096):
    """Return lengths of 1 ... `most`, mostly short ones, as requests at a server have them."""
    rng = np.random.default_rng(0)
    lengths = np.exp(rng.uniform(0, np.log(most), count)).round().astype(int)
    return tuple(int(n) for n in lengths.clip(1, most))


def varlen(dtype="float32"):
    """Return packed sequences: decoding, prefill, and one prefill beside many that decode."""
    keys = mixed_lengths()
    shape = {"Hq": 32, "Hkv": 8, "D": 128, "causal": True, "dtype": dtype}
    short_ones = mixed_lengths(16, 1024)
    batches = {
        "decode": [(1, n) for n in keys],
        "prefill": [(n, n) for n in short_ones],
        "mixed": [(1024, 1024), *((1, n) for n in keys[:60])],
    }
    return [
        Problem(f"varlen {name} {len(packed)} sequences", packed=tuple(packed), **shape)
        for name, packed in batches.items()
    ]


def models(dtype="float32"):
    """Return the attention of one layer of well-known models, as their configurations say."""
    shapes = {
        "BERT-base": {"B": 4, "Hq": 12, "Sq": 512, "D": 64},
        "ViT-L/16": {"B": 4, "Hq": 16, "Sq": 197, "D": 64},
        "Whisper-large encoder": {"Hq": 20, "Sq": 1500, "D": 64},
        "Whisper-large cross decode": {"Hq": 20, "Sq": 1, "Sk": 1500, "D": 64},
        "Llama-3-8B prefill": {"Hq": 32, "Hkv": 8, "Sq": 1024, "D": 128, "causal": True},
        "Llama-3-8B decode": {"Hq": 32, "Hkv": 8, "Sq": 1, "Sk": 8192, "D": 128},
        "Qwen2.5-7B prefill": {"Hq": 28, "Hkv": 4, "Sq": 1024, "D": 128, "causal": True},
        "Qwen2.5-7B decode": {"Hq": 28, "Hkv": 4, "Sq": 1, "Sk": 8192, "D": 128},
        "Gemma-2-9B prefill": {
            "Hq": 16, "Hkv": 8, "Sq": 1024, "D": 256, "causal": True, "softcap": 50.0,
        },
        "Gemma-2-9B decode, window": {
            "Hq": 16, "Hkv": 8, "Sq": 1, "Sk": 8192, "D": 256, "causal": True, "window": 4095,
            "softcap": 50.0,
        },
        "GPT-OSS-20B prefill, window": {
            "Hq": 64, "Hkv": 8, "Sq": 1024, "D": 64, "causal": True, "window": 127, "sinks": True,
        },
        "GPT-OSS-20B decode": {"Hq": 64, "Hkv": 8, "Sq": 1, "Sk": 8192, "D": 64, "sinks": True},
        "DeepSeek MLA prefill": {"Hq": 128, "Sq": 256, "D": 192, "Dv": 128, "causal": True},
        "DeepSeek MLA decode": {"Hq": 128, "Hkv": 1, "Sq": 1, "Sk": 4096, "D": 576, "Dv": 512},
    }  # fmt: skip
    return [Problem(name, dtype=dtype, **shape) for name, shape in shapes.items()]


SUITES = {
    "short": short,
    "prefill": prefill,
    "causal": functools.partial(prefill, True),
    "decode": decode,
    "varlen": varlen,
    "masks": all_masks,
    "small": small,
    "models": models,
}


def types(dtype):
    """Return the types of a `Problem` by one word: a narrow one is that of K and V alone."""
    if dtype in NARROW:
        return {"dtype": "float32", "kv_dtype": dtype}
    return {"dtype": dtype, "kv_dtype": ""}


def suite(name, dtype="float32"):
    """Return the problems of a suite; "all" is every one but "short".

    Parameters
    ----------
    name : str
    dtype : str
        "float32", "float64", "float16", "bfloat16", or as in `types` that of K and V: "int8",
        "float8_e4m3fn", "float8_e5m2".
    """
    if name not in SUITES and name != "all":
        raise ValueError(f"suite: expected one of {', '.join([*SUITES, 'all'])}, got {name!r}")
    chosen = [key for key in SUITES if key != "short"] if name == "all" else [name]
    kinds = types(dtype)
    problems = [problem for key in chosen for problem in SUITES[key](dtype=kinds["dtype"])]
    if kinds["kv_dtype"]:
        # A name that was made from the shape is made anew, with the type.
        problems = [
            dataclasses.replace(each, **kinds, name="" if each.name == each.label else each.name)
            for each in problems
        ]
    return list(dict.fromkeys(problems))
