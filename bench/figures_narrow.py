# SPDX-License-Identifier: MIT
"""Section of the report about 16-bit types, and keys and values of 8 bits."""

import dataclasses

from figure import ERROR_SIZES, Figure, errors, measured_rows, relative_times

from fastattn.measure import peers, runner, suites, timing
from fastattn.measure.problems import Problem

DTYPES = ("float16", "bfloat16")
BYTES = ("int8", "float8_e4m3fn", "float8_e5m2")
PEERS = ("torch", "ort-attention", "vllm")


def narrow(settings):
    """16-bit types: prefill, decoding (with K and V of 8 bits as well) and error."""
    prefill_figures, prefill_rows = _prefill(settings)
    decode_figures, decode_rows = _decode(settings)
    return _errors(settings) + prefill_figures + decode_figures, prefill_rows + decode_rows


def _prefill(settings):
    """Time relative to float32, of bytes to bfloat16, and the best peer of each shape."""
    figures, rows = [], []
    for depth in suites.DEPTHS:
        base = Problem(Hq=suites.HEADS, Sq=settings.length(2048), D=depth)
        others = [named(base, dtype) for dtype in DTYPES]
        times = relative_times(base, others, settings)
        figures += [Figure(f"{problem.name} / float32", times[problem]) for problem in others]
        rows += measured_rows(settings, others, PEERS)
        bytes_ = [named(base, "bfloat16", dtype) for dtype in BYTES]
        times = relative_times(others[-1], bytes_, settings)
        figures += [Figure(f"{problem.name} / bfloat16", times[problem]) for problem in bytes_]
    for dtype in DTYPES:
        group = [row for row in rows if row.problem.dtype == dtype and row.measured and row.peers]
        if group:
            goal = 1.5 if dtype == "bfloat16" else None
            name = f"prefill {dtype}, geomean against the best peer"
            figures.append(
                Figure(name, timing.geomean(row.ratio() for row in group), "", None, goal)
            )
    return figures, rows


def _decode(settings):
    """Share of a plain read of the same bytes, with grouped heads; bytes against bfloat16."""
    keys = settings.length(32768, 2048)
    base = Problem(Hq=32, Hkv=8, Sq=1, Sk=keys, D=128)
    words = [named(base, dtype) for dtype in DTYPES]
    bytes_ = [named(base, "bfloat16", dtype) for dtype in BYTES]
    rows = measured_rows(settings, [*words, *bytes_], PEERS)
    figures = []
    for row in rows:
        if row.measured:
            goal = 0.8 if row.problem in words else None
            share = row.share(bound=runner.READ)
            name = f"decode {row.problem.name}, share of bandwidth"
            figures.append(Figure(name, share, "%", at_least=goal))
    times = relative_times(words[-1], bytes_, settings)
    figures += [
        Figure(f"decode {each.name}, times bfloat16", 1 / times[each], at_least=1.6)
        for each in bytes_
    ]
    return figures, rows


def _errors(settings):
    """Error against the oracle, which is fed the rounded inputs; torch's beside it."""
    base = Problem(Hq=suites.HEADS, Sq=settings.length(2048), D=64)
    figures = []
    words = [named(base, dtype) for dtype in DTYPES]
    bytes_ = [named(base, dtype, "int8") for dtype in ("float32", "bfloat16")]
    for problem in (*words, *bytes_):
        found = errors(problem, settings, [peers.Fastattn(settings.threads)])
        for index, (kind, unit) in enumerate(ERROR_SIZES.items()):
            bound = found["torch"][index] if "torch" in found else None
            for name, values in found.items():
                # The largest one is the rounding of one result: alike for everybody, but by luck.
                goal = bound if name == "fastattn" and kind == "rms" else None
                label = f"error {problem.name} {name} {kind}"
                figures.append(Figure(label, values[index], unit, at_most=goal))
    return figures


def named(problem, dtype, kv_dtype=""):
    """Return the problem with other types, which are part of its name."""
    words = problem.label if not kv_dtype else f"{problem.label} {kv_dtype} K and V with"
    return dataclasses.replace(problem, name=f"{words} {dtype}", dtype=dtype,
                               kv_dtype=kv_dtype or dtype)  # fmt: skip
