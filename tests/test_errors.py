# SPDX-License-Identifier: MIT
"""One test for each message of the validation modules, and nothing written when one is raised.

The cases stand in error_cases.py and error_cases_cache.py. `test_every_raise_has_a_case` traces
them and fails when a `raise` of the validation modules is reached by none.
"""

import ast
import contextlib
import sys

import numpy as np
import pytest
from error_cases import (
    ATTENTION_CASES,
    F32,
    MERGE_CASES,
    OUT_SHAPE,
    SDPA_CASES,
    WEIGHTS_CASES,
    K,
    Q,
    V,
    repeated,
    zeros,
)
from error_cases_cache import (
    FIVE,
    FIVE_AXES_CASES,
    PAGED,
    PAGED_CASES,
    PAGED_SCALE_CASES,
    SCALE_CASES,
    VARLEN,
    VARLEN_CASES,
    VARLEN_PAGED,
    VARLEN_PAGED_CASES,
)

import fastattn
from fastattn import (
    _check,
    _check_cache,
    _check_dtypes,
    _check_options,
    _check_scores,
    _check_tensors,
    _check_varlen,
)

pytestmark = pytest.mark.forces_isa


def arguments(changes):
    return {"q": Q, "k": K, "v": V, **changes}


@pytest.fixture(params=[_check.problem, fastattn.attention])
def call(request):
    """Whatever takes the arguments of `attention`: the validation alone, the public function."""
    return request.param


@pytest.fixture(params=[_check.weights_problem, fastattn.attention_weights])
def call_weights(request):
    return request.param


@pytest.fixture(params=[_check.merge_problem, fastattn.merge_states])
def call_merge(request):
    if request.param is _check.merge_problem:
        return request.param
    return lambda outs, lses, out=None: request.param(outs, lses, out=out)


@pytest.fixture(params=[_check.sdpa_arguments, fastattn.scaled_dot_product_attention])
def call_sdpa(request):
    return request.param


@pytest.fixture(params=[_check.varlen_problem, fastattn.attention_varlen])
def call_varlen(request):
    return request.param


def check(function, exception, message):
    """Call `function`, which has to raise exactly `exception` with a text starting `message`."""
    with pytest.raises(exception) as caught:
        function()
    assert caught.type is exception
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "changes, exception, message", ATTENTION_CASES.values(), ids=ATTENTION_CASES
)
def test_attention(call, changes, exception, message):
    changes = dict(changes)
    canary = changes.setdefault("out", np.full(OUT_SHAPE, 7, F32))
    before = np.array(canary)
    check(lambda: call(**arguments(changes)), exception, message)
    np.testing.assert_array_equal(canary, before)


@pytest.mark.parametrize("changes, exception, message", WEIGHTS_CASES.values(), ids=WEIGHTS_CASES)
def test_attention_weights(call_weights, changes, exception, message):
    check(lambda: call_weights(**{"q": Q, "k": K, **changes}), exception, message)


@pytest.mark.parametrize("positional, exception, message", MERGE_CASES.values(), ids=MERGE_CASES)
def test_merge_states(call_merge, positional, exception, message):
    check(lambda: call_merge(*positional), exception, message)


@pytest.mark.parametrize("changes, exception, message", SDPA_CASES.values(), ids=SDPA_CASES)
def test_scaled_dot_product_attention(call_sdpa, changes, exception, message):
    named = {"query": Q, "key": K, "value": V, **changes}
    check(lambda: call_sdpa(**named), exception, message)


@pytest.mark.parametrize(
    "changes, exception, message",
    [
        ({"key": zeros(2, 8, 32, 65)}, ValueError, "key: expected depth 64 like query, got shape"),
        ({"value": zeros(2, 8, 31, 48)}, ValueError, "value: expected 32 keys like key, got shape"),
        ({"key": zeros(2, 3, 32, 64), "value": zeros(2, 4, 32, 48), "enable_gqa": True}, ValueError,
         "key: expected a number of heads that divides query's 8, got shape (2, 3, 32, 64)"),
        ({"attn_mask": zeros(16, 32, dtype=int)}, TypeError,
         "attn_mask: expected dtype bool or float32 with float32 query, got int64"),
    ],
    ids=["depth", "keys", "heads", "mask"],
)  # fmt: skip
def test_scaled_dot_product_attention_names_its_own_arguments(changes, exception, message):
    named = {"query": Q, "key": zeros(2, 8, 32, 64), "value": zeros(2, 8, 32, 48), **changes}
    check(lambda: fastattn.scaled_dot_product_attention(**named), exception, message)


FIVE_AXES = {**PAGED, "q": FIVE, "block_table": np.zeros((6, 3), int)}


@pytest.mark.parametrize(
    "valid, changes, exception, message",
    [
        *(pytest.param(PAGED, *case, id=name) for name, case in PAGED_CASES.items()),
        *(pytest.param(FIVE_AXES, *case, id=f"5 {name}") for name, case in FIVE_AXES_CASES.items()),
    ],
)
def test_wrong_pages_are_refused(call, valid, changes, exception, message):
    arguments = {**valid, **changes}
    shape = (*np.shape(arguments["q"])[:-1], 48)
    canary = arguments.setdefault("out", np.full(shape, 7, F32))
    before = canary.copy()
    check(lambda: call(**arguments), exception, message)
    np.testing.assert_array_equal(canary, before)


@pytest.mark.parametrize(
    "valid, value, exception, message",
    [
        *(pytest.param(arguments({}), *case, id=name) for name, case in SCALE_CASES.items()),
        *(pytest.param(PAGED, *case, id=f"paged {n}") for n, case in PAGED_SCALE_CASES.items()),
    ],
)
def test_scales(call, call_weights, valid, value, exception, message):
    check(lambda: call(**valid, k_scale=value), exception, message)
    without_v = {name: tensor for name, tensor in valid.items() if name != "v"}
    check(lambda: call_weights(**without_v, k_scale=value), exception, message)
    if np.shape(value) != (2, 2, 24):
        message = message.replace("k_scale", "v_scale")
        check(lambda: call(**valid, v_scale=value), exception, message)


@pytest.mark.parametrize(
    "valid, changes, exception, message",
    [
        *(pytest.param(VARLEN, *case, id=name) for name, case in VARLEN_CASES.items()),
        *(
            pytest.param(VARLEN_PAGED, *case, id=f"paged {n}")
            for n, case in VARLEN_PAGED_CASES.items()
        ),
    ],
)
def test_varlen(call_varlen, valid, changes, exception, message):
    changes = dict(changes)
    canary = changes.setdefault("out", np.full((10, 8, 48), 7, F32))
    before = canary.copy()
    check(lambda: call_varlen(**{**valid, **changes}), exception, message)
    np.testing.assert_array_equal(canary, before)


@pytest.mark.parametrize("q", [zeros(8, 8, 1), repeated(8, 8, 1)], ids=["plain", "repeated"])
@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_results_larger_than_any_array(call, q, layout):
    k, v = repeated(1, 1, 1), repeated(1, 1, 2**58)
    message = f"q, v: expected a result that an array can hold, got one of shape (8, 8, {2**58})"
    check(lambda: call(q, k, v, layout=layout), ValueError, message)


@pytest.mark.parametrize("keys, depth", [(2**57, 8), (1, 2**32)], ids=["keys", "depth"])
def test_more_numbers_than_the_core_counts(keys, depth):
    q, k, v = repeated(8, 8, depth), repeated(1, keys, depth), repeated(1, keys, 8)
    message = (
        "q, k, v: expected at most 2^56 numbers together, of at most 2^31 features, got 8 queries, "
        f"{keys} keys, depths {depth} and 8"
    )
    check(lambda: fastattn.attention(q, k, v), ValueError, message)


def test_packed_results_larger_than_any_array(call_varlen):
    q, k, v = repeated(2**40, 1, 1), repeated(1, 1, 1), repeated(1, 1, 2**40)
    message = f"q, v: expected a result that an array can hold, got one of shape (1, {2**40}, "
    check(lambda: call_varlen(q, k, v, [0, 2**40], [0, 1]), ValueError, message)


def test_16_bit_types_do_not_mix(call):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    changes = {"q": Q.astype(ml_dtypes.bfloat16), "k": K.astype(np.float16)}
    message = "k: expected dtype bfloat16, int8, float8_e4m3fn or float8_e5m2 with bfloat16 q, got "
    check(lambda: call(**arguments(changes)), TypeError, message + "float16")
    changes["k"] = K.astype(ml_dtypes.float8_e4m3fnuz)
    check(lambda: call(**arguments(changes)), TypeError, message + "float8_e4m3fnuz")


# ---- out overlaps --------------------------------------------------------------------------------

PACKED = zeros(2, 8, 32, 96)


@pytest.mark.parametrize(
    "name, tensor",
    [
        ("q", PACKED[:, :, :16, :64]),
        ("k", PACKED[:, :2, :, 32:]),
        ("v", PACKED[:, 6:, :, 40:88]),
        ("attn_mask", PACKED[0, 0, :16, :32]),
        ("alibi_slopes", PACKED[0, :, 0, 0]),
        ("sinks", PACKED[1, 2, 10, 8:16]),
        ("k_scale", PACKED[0, :2, 0, 0]),
        ("v_scale", PACKED[:, :2, :, 0]),
    ],
)
def test_out_overlaps(call, name, tensor):
    out = PACKED[:, :, :16, :48]
    message = f"out: expected memory of its own, got an array that overlaps {name}"
    check(lambda: call(**arguments({name: tensor, "out": out})), ValueError, message)


@pytest.mark.parametrize("backwards", [False, True])
def test_out_right_beside_a_tensor(backwards):
    """Neighbours in memory do not overlap; one element more of either does."""
    memory = np.random.default_rng(5).standard_normal(3 * 512 + 1).astype(F32)
    shape = (1, 2, 16, 16)
    q, out = (memory[n : n + 512].reshape(shape) for n in (0, 1024))
    for first in (512, 511, 513):
        k = memory[first : first + 512].reshape(shape)
        k = k[:, ::-1, ::-1] if backwards else k
        if first == 513:
            before, message = memory.copy(), "out: expected memory of its own, got an array that"
            check(
                lambda k=k: fastattn.attention(q, k, q, out=out),
                ValueError,
                f"{message} overlaps k",
            )
            np.testing.assert_array_equal(memory, before)
        else:
            expected = fastattn.attention(q.copy(), k.copy(), q.copy())
            assert fastattn.attention(q, k, q, out=out) is out
            np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("name", ["kv_lengths", "kv_starts", "q_offset"])
def test_out_overlaps_positions(call, name):
    memory = np.zeros(2 * 8 * 16 * 48, F32)
    out, positions = memory.reshape(OUT_SHAPE), memory.view(np.int64)[:2]
    message = f"out: expected memory of its own, got an array that overlaps {name}"
    check(lambda: call(**arguments({name: positions, "out": out})), ValueError, message)


def test_out_overlaps_table(call):
    memory = np.zeros(2 * 8 * 16 * 48, F32)
    out, table = memory.reshape(OUT_SHAPE), memory.view(np.int32)[:6].reshape(2, 3)
    message = "out: expected memory of its own, got an array that overlaps block_table"
    check(lambda: call(**{**PAGED, "block_table": table, "out": out}), ValueError, message)


@pytest.mark.parametrize(
    "name", ["cu_seqlens_q", "cu_seqlens_k", "kv_lengths", "kv_starts", "q_offset"]
)
def test_varlen_out_overlaps_cuts_and_positions(call_varlen, name):
    memory = np.zeros(10 * 8 * 48, F32)
    out, values = memory.reshape(10, 8, 48), memory.view(np.int32)[:3]
    if name in VARLEN:
        values = memory.view(np.int32)[:4]
        values[:] = VARLEN[name]
    message = f"out: expected memory of its own, got an array that overlaps {name}"
    changes = {name: values, "out": out}
    check(lambda: call_varlen(**{**VARLEN, **changes}), ValueError, message)


def test_overlap_too_hard_to_decide_counts(call, monkeypatch):
    def too_hard(*_, **__):
        raise np.exceptions.TooHardError

    monkeypatch.setattr(np, "shares_memory", too_hard)
    out = PACKED[:, :, :16, :48]
    changes = {"q": PACKED[:, :, 16:, 32:], "out": out}
    check(lambda: call(**arguments(changes)), ValueError, "out: expected memory of its own")


def test_out_beside_an_input_is_no_overlap():
    out = PACKED[:, :, :16, :48]
    p = _check.problem(PACKED[:, :, 16:, 32:], K, V, out=out)
    assert p.result is out


def test_merge_out_overlaps(call_merge):
    outs, lses = [zeros(5, 3), zeros(5, 3)], [zeros(5)] * 2
    message = "out: expected memory of its own, got an array that overlaps outs"
    check(lambda: call_merge(outs, lses, outs[1]), ValueError, message)


# ---- completeness --------------------------------------------------------------------------------


def raises_in(module):
    """Line numbers of the module's raise statements."""
    with open(module.__file__, encoding="utf-8") as source:
        tree = ast.parse(source.read())
    return {node.lineno for node in ast.walk(tree) if isinstance(node, ast.Raise)}


def attempt(function, *positional, **named):
    with contextlib.suppress(TypeError, ValueError, NotImplementedError):
        function(*positional, **named)


def test_every_raise_has_a_case():
    rooms = (_check, _check_cache, _check_dtypes, _check_options, _check_scores, _check_tensors)
    modules = {module.__file__: module for module in (*rooms, _check_varlen)}
    reached = {path: set() for path in modules}

    def trace(frame, event, _):
        path = frame.f_code.co_filename
        if path not in reached:
            return None
        if event == "line":
            reached[path].add(frame.f_lineno)
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        for changes, _, _ in ATTENTION_CASES.values():
            attempt(_check.problem, **arguments(changes))
        for changes, _, _ in WEIGHTS_CASES.values():
            attempt(_check.weights_problem, **{"q": Q, "k": K, **changes})
        shared = {"q": PACKED[:, :, :16, :64], "out": PACKED[:, :, :16, :48]}
        attempt(_check.problem, **arguments(shared))
        for valid, cases in (PAGED, PAGED_CASES), (FIVE_AXES, FIVE_AXES_CASES):
            for changes, _, _ in cases.values():
                attempt(_check.problem, **{**valid, **changes})
        for value, _, _ in SCALE_CASES.values():
            attempt(_check.problem, **arguments({"k_scale": value}))
        for valid, cases in (VARLEN, VARLEN_CASES), (VARLEN_PAGED, VARLEN_PAGED_CASES):
            for changes, _, _ in cases.values():
                attempt(_check.varlen_problem, **{**valid, **changes})
        attempt(fastattn.quantize_kv, Q, Q, np.int16)  # its cases stand in test_quantize.py
        for positional, _, _ in MERGE_CASES.values():
            attempt(_check.merge_problem, *positional)
        for changes, _, _ in SDPA_CASES.values():
            attempt(_check.sdpa_arguments, **{"query": Q, "key": K, "value": V, **changes})
        attempt(_check_dtypes.named, "float9", ("float32",))
        for check_one in _check_options.path, _check_options.mapping:
            attempt(check_one, "name", 5)  # cases in test_caches_files_errors.py
    finally:
        sys.settrace(before)
    missed = {path: sorted(raises_in(modules[path]) - reached[path]) for path in modules}
    assert not any(missed.values()), missed
