# SPDX-License-Identifier: MIT
"""``run``: attention of arrays in .npy files."""

import contextlib
import os
import sys
import time
import types
from pathlib import Path

import numpy as np

from fastattn import _check_dtypes as dtypes
from fastattn import _check_options as checks
from fastattn import _check_tensors as tensors
from fastattn.cli.arguments import UsageError, check_isa, check_output, dtype_errors, file_errors

# NumPy forgets the types of ml_dtypes when it saves them: the option that says what an array of
# such a dtype is, and what that may be.
FORGOTTEN = {
    np.dtype("V2"): ("--dtype", ("bfloat16",)),
    np.dtype("V1"): ("--kv-dtype", ("float8_e4m3fn", "float8_e5m2")),
}
INTEGERS = ("q_offset", "kv_lengths", "kv_starts")
PER_HEAD = ("alibi_slopes", "sinks")
FILES_OF_NUMBERS = (*INTEGERS, "k_scale", "v_scale", *PER_HEAD)
# Arguments of `attention` whose options have other names.
RENAMED = {"attn_mask": "mask", "window_size": "window", "num_threads": "threads"}


def add(subparsers):
    """Declare the subcommand."""
    parser = subparsers.add_parser(
        "run",
        help="attention of arrays in .npy files",
        description="Compute attention of three .npy files (read memory-mapped) and write the "
        "result to another one. Shapes: q (..., Hq, Sq, D), k (..., Hkv, Sk, D), "
        "v (..., Hkv, Sk, Dv); two axes are one head. Bad input gives exit code 2 and one line.",
    )
    for name, what in (("q", "queries"), ("k", "keys"), ("v", "values")):
        parser.add_argument(name, type=Path, metavar=f"{name}.npy", help=what)
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="out.npy", help="result")
    parser.add_argument("--lse", type=Path, metavar="FILE", help="also write the log-sum-exp")
    parser.add_argument("--mask", type=Path, metavar="FILE", help="bool (True = attend) or float")
    parser.add_argument("--causal", action="store_true", help="no key behind the query's position")
    parser.add_argument(
        "--window", type=int, nargs=2, metavar=("L", "R"),
        help="keys at most L before and R behind the position; -1 is unbounded",
    )  # fmt: skip
    parser.add_argument("--scale", type=float, help="of the scores (default: 1/sqrt(D))")
    parser.add_argument("--softcap", type=float, default=0.0, help="soft limit of the scores")
    integers = "an integer, several with commas, or a .npy file with one per batch entry"
    parser.add_argument(
        "--q-offset", metavar="N",
        help=f"position of query 0: {integers} (default: bottom right); with commas and a negative "
        "one in front: --q-offset=-3,2",
    )  # fmt: skip
    parser.add_argument("--kv-lengths", metavar="N", help=f"keys that exist: {integers}")
    parser.add_argument("--kv-starts", metavar="N", help=f"first key that exists: {integers}")
    scales = "a number, several with commas (one per kv head), or a .npy file as quantize_kv makes"
    parser.add_argument("--k-scale", metavar="X", help=f"of k of int8 or fp8: {scales}")
    parser.add_argument("--v-scale", metavar="X", help="of v likewise: true = stored times scale")
    per_head = "one per head of q, with commas, or a .npy file"
    parser.add_argument("--alibi-slopes", metavar="X", help=f"slopes of ALiBi: {per_head}")
    parser.add_argument("--sinks", metavar="X", help=f"scores that add to the sum: {per_head}")
    parser.add_argument(
        "--layout", choices=("bhsd", "bshd"), default="bhsd", help="order of axes (%(default)s)"
    )
    (_, words), (_, bytes_) = FORGOTTEN.values()
    parser.add_argument(
        "--dtype", choices=words,
        help="what arrays of |V2 are: np.save writes bfloat16 as that, also the result's",
    )  # fmt: skip
    parser.add_argument(
        "--kv-dtype", choices=bytes_, help="what k and v of uint8 or |V1, the bytes of fp8, are"
    )
    parser.add_argument(
        "--precision",
        choices=checks.PRECISIONS,
        default="highest",
        help="for float32 (%(default)s)",
    )
    parser.add_argument("--isa", help="instruction set to use instead of the best one")
    parser.add_argument("--threads", type=int, help="number of threads")
    parser.set_defaults(run=run)


def run(options):
    """Load, compute, write, print; return 0."""
    import fastattn

    check_isa(options.isa)
    _check_outputs(options)
    arrays = [_load(options.q, options), *(_load_kv(p, options) for p in (options.k, options.v))]
    keywords = _keywords(options)
    try:
        with fastattn.use_isa(options.isa or fastattn.isa()):
            begin = time.perf_counter()
            out, lse = fastattn.attention(*arrays, **keywords, return_lse=True)
            seconds = time.perf_counter() - begin
    except (TypeError, ValueError, MemoryError) as error:
        checks.rename(error, {name: _option(name) for name in keywords})
        raise UsageError(error) from None
    _save(options.out, out)
    if options.lse is not None:
        _save(options.lse, lse)
    operations = _flops(arrays, keywords)
    # To a result on standard output it would be damage.
    outputs = [path for path in (options.out, options.lse) if path is not None]
    with contextlib.redirect_stdout(sys.stderr if any(map(_is_stdout, outputs)) else sys.stdout):
        _report(arrays, out, operations, seconds)
    return 0


def _check_outputs(options):
    """Raise UsageError unless outputs can be written, each to a file of its own."""
    others = (options.mask, *(getattr(options, name) for name in FILES_OF_NUMBERS))
    inputs = [options.q, options.k, options.v, *(Path(each) for each in others if each)]
    for name, path in ("--out", options.out), ("--lse", options.lse):
        if path is None:
            continue
        check_output(path)
        if any(_is_same(path, each) for each in inputs):
            raise UsageError(f"{name}: expected another file than the inputs, got {path}")
    if options.lse is not None and _is_same(options.lse, options.out):
        raise UsageError(f"--lse: expected another file than the result's, got {options.lse}")


def _is_same(path, other):
    """Whether both are one file, by whatever names."""
    try:
        return path.samefile(other)
    except OSError:  # one of them is not there yet
        return path.resolve() == other.resolve()


def _load(path, options):
    """Return the array of a .npy file, memory-mapped; `options` say what a forgotten type was."""
    try:
        with file_errors(path):
            array = np.load(path, mmap_mode="r", allow_pickle=False)
    except UsageError:
        raise
    except Exception as error:  # what NumPy makes of damaged bytes may raise anything
        if str(error).endswith("'<f1'"):
            raise UsageError(
                f"{path}: dtype <f1, as np.save writes float8_e5m2, which NumPy does not read: "
                "expected bytes (np.save of array.view(numpy.uint8)) and --kv-dtype with them"
            ) from None
        # Pickles are rejected, and NumPy speaks of them to everybody.
        raise UsageError(f"{path}: no readable .npy file of numbers") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise UsageError(f"{path}: an .npz archive, expected a .npy file with one array")
    array = np.asarray(array)
    if array.dtype.kind != "V":
        return array
    if array.dtype not in FORGOTTEN:
        raise UsageError(f"{path}: dtype {array.dtype}, expected numbers")
    option, names = FORGOTTEN[array.dtype]
    dtype = options.dtype if option == "--dtype" else options.kv_dtype
    if dtype is None:
        raise UsageError(
            f"{path}: dtype {array.dtype}, as np.save writes {dtypes.listed(names)}: expected "
            f"{option} with it"
        )
    with dtype_errors(dtype, option):
        return array.view(dtypes.named(dtype))


def _load_kv(path, options):
    """Return k or v, which with ``--kv-dtype`` are bytes of fp8."""
    array = _load(path, options)
    if options.kv_dtype is None or array.dtype.name == options.kv_dtype:
        return array
    if array.dtype != np.uint8:
        found = dtypes.dtype_name(array.dtype)
        raise UsageError(f"{path}: expected bytes (uint8 or |V1) with --kv-dtype, got {found}")
    with dtype_errors(options.kv_dtype, "--kv-dtype"):
        return array.view(dtypes.named(options.kv_dtype))


def _save(path, array):
    """Write a .npy file under exactly this name; where that ends early, leave no part of it."""
    with file_errors(path):
        try:
            with path.open("wb") as file:
                # Of a file NumPy would ask the position, which pipes have not, and not say why it
                # could not write.
                np.save(types.SimpleNamespace(write=file.write), array)
        except BaseException:
            if path.is_file() and not path.is_symlink():  # such as /dev/stdout
                path.unlink()
            raise


def _is_stdout(path):
    """Whether standard output goes to this file, such as ``/dev/stdout``."""
    try:
        return os.path.samestat(path.stat(), os.fstat(sys.stdout.fileno()))
    except (OSError, ValueError, AttributeError):  # it is no file, or closed
        return False


def _numbers(name, options):
    """Return what was given for an option of `FILES_OF_NUMBERS`: None, a number, or several."""
    text = getattr(options, name)
    if text is None:
        return None
    kind, what = (int, "integers") if name in INTEGERS else (float, "numbers")
    try:
        values = [kind(word) for word in text.split(",")]
    except ValueError:
        if not text or not Path(text).exists():
            expected = f"expected {what} or a .npy file"
            raise UsageError(f"{_option(name)}: {expected}, got {text!r}") from None
        return np.array(_load(Path(text), options))
    return values[0] if len(values) == 1 and name not in PER_HEAD else values


def _option(name):
    """Return the option that gives this argument of `attention`."""
    return f"--{RENAMED.get(name, name).replace('_', '-')}"


def _keywords(options):
    """Return the keyword arguments of `attention`."""
    return {
        "attn_mask": None if options.mask is None else _load(options.mask, options),
        "causal": options.causal,
        "window_size": None if options.window is None else tuple(options.window),
        "scale": options.scale,
        "softcap": options.softcap,
        **{name: _numbers(name, options) for name in FILES_OF_NUMBERS},
        "layout": options.layout,
        "precision": options.precision,
        "num_threads": options.threads,
    }


def _report(arrays, out, operations, seconds):
    """Print shapes, time and speed."""
    from fastattn.measure import table

    named = zip(("q", "k", "v", "out"), (*arrays, out), strict=True)
    print(", ".join(f"{name} {'x'.join(map(str, a.shape))} {a.dtype}" for name, a in named))
    print(f"{table.seconds_text(seconds)}, {operations / seconds / 1e9:.3g} GFLOP/s")


def _flops(arrays, keywords):
    """Return the floating point operations of the pairs that positions and mask allow."""
    q, k, v = (tensors.logical(array, keywords["layout"] == "bshd") for array in arrays)
    lead = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    pairs = _pairs(lead, (*q.shape[-3:-1], k.shape[-2]), keywords)
    return 2 * (q.shape[-1] + v.shape[-1]) * pairs


def _pairs(lead, shape, keywords):
    """Return the allowed pairs over batch `lead` and heads; `shape` is (heads, Sq, Sk)."""
    from fastattn.measure.problems import allowed_pairs

    heads, queries, keys = shape
    mask = keywords["attn_mask"]
    if mask is not None:
        mask = mask.reshape(mask.shape[max(0, mask.ndim - len(lead) - 3) :])  # leading ones
        mask = np.broadcast_to(mask, (*lead, *shape))

    def per_batch(name, default):
        given = default if keywords[name] is None else keywords[name]
        return checks.per_batch(name, given, lead, -checks.LARGEST_OFFSET, checks.LARGEST_OFFSET)

    ends = per_batch("kv_lengths", keys)
    starts = per_batch("kv_starts", 0)
    offsets = per_batch("q_offset", ends - queries)
    window = checks.window(keywords["window_size"])
    counted, total = {}, 0
    for b, index in enumerate(np.ndindex(lead)):
        bounds = int(offsets[b]), int(starts[b]), int(ends[b])
        for head in range(heads):
            own = None if mask is None else mask[(*index, head)]
            # Heads that share a mask have the same count, and it takes a pass over the mask.
            case = (*bounds, None if own is None else own.ctypes.data)
            if case not in counted:
                counted[case] = allowed_pairs(
                    queries, keys, causal=keywords["causal"], mask=own, window=window,
                    q_offset=bounds[0], kv_begin=bounds[1], kv_end=bounds[2],
                )  # fmt: skip
            total += counted[case]
    return total
