# SPDX-License-Identifier: MIT
"""fastattn.onnx against every node test of the operator Attention, and where those say nothing.

The node tests come out of the installed onnx as Python objects; the comparison is onnx's own.
"""

import doctest
import itertools
from collections import Counter

import numpy as np
import pytest
from cases import dtype_of
from programs import run

pytest.importorskip("onnx")

import onnx.backend.test.case.node.attention
from onnx.backend.test.runner import Runner
from onnx.reference import ReferenceEvaluator

import fastattn.onnx

CASES = {
    case.name: case
    for case in onnx.backend.test.case.node._NodeTestCases
    if [node.op_type for node in case.model.graph.node] == ["Attention"]
}
OPSETS = [version for version in (23, 24, 25) if version <= onnx.defs.onnx_opset_version()]


def opset(case):
    return case.model.opset_import[0].version


def test_number_of_node_tests():
    found = Counter(opset(case) for case in CASES.values())
    assert found
    if tuple(map(int, onnx.__version__.split(".")[:2])) >= (1, 23):
        assert found[23] >= 69 and found[24] >= 13 and found[25] >= 11


@pytest.mark.parametrize("name", CASES)
def test_node(name):
    case = CASES[name]
    evaluator = ReferenceEvaluator(case.model, new_ops=[fastattn.onnx.Attention])
    assert [type(node) for node in evaluator.rt_nodes_] == [fastattn.onnx.Attention]
    for inputs, expected in case.data_sets:
        got = evaluator.run(None, dict(zip(evaluator.input_names, inputs, strict=True)))
        Runner.assert_similar_outputs(expected, got, case.rtol, case.atol)


B, HQ, HKV, SQ, SK, P, D, DV = 2, 6, 2, 5, 7, 4, 8, 3
NAMES = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
OUTPUTS = ("Y", "present_key", "present_value", "qk_matmul_output")


def tensors(rng, rank=4, past=False, dtype=np.float32):
    """Inputs of the operator that fit each other."""
    shapes = {"Q": (B, HQ, SQ, D), "K": (B, HKV, SK, D), "V": (B, HKV, SK, DV)}
    if rank == 3:
        shapes = {"Q": (B, SQ, HQ * D), "K": (B, SK, HKV * D), "V": (B, SK, HKV * DV)}
    if past:
        shapes |= {"past_key": (B, HKV, P, D), "past_value": (B, HKV, P, DV)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


def heads(rank):
    return {"q_num_heads": HQ, "kv_num_heads": HKV} if rank == 3 else {}


def by_onnx(inputs, version, outputs=OUTPUTS[:3], new_ops=None, **attributes):
    """What onnx's own evaluator, or an operator in its place, makes of the inputs in float64.

    It reads the number of queries off the mask of a causal call (onnx 1.23), so that one is
    broadcast here.
    """
    wide = {
        name: tensor.astype(np.float64) if tensor.dtype.kind == "f" else tensor
        for name, tensor in inputs.items()
    }
    if "attn_mask" in wide:
        mask = np.atleast_2d(wide["attn_mask"])
        wide["attn_mask"] = np.broadcast_to(mask, (*mask.shape[:-2], SQ, mask.shape[-1]))
    node = onnx.helper.make_node(
        "Attention", [name if name in inputs else "" for name in NAMES], outputs, **attributes
    )
    kinds = {name: onnx.helper.np_dtype_to_tensor_dtype(t.dtype) for name, t in wide.items()}
    info = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node],
        "attention",
        [info(name, kind, None) for name, kind in kinds.items()],
        [info(name, onnx.TensorProto.DOUBLE, None) for name in outputs if name],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", version)])
    return ReferenceEvaluator(model, new_ops=new_ops).run(None, wide)


@pytest.mark.parametrize(
    "outputs, mode", [(OUTPUTS, 0), (OUTPUTS[:3], None), (("Y", "", "", ""), None)]
)
def test_scores_are_made_where_a_node_names_them(outputs, mode, rng, monkeypatch):
    operator, modes = fastattn.onnx.Attention, []

    def spy(*inputs, **attributes):
        modes.append(attributes["qk_matmul_output_mode"])
        return fastattn.onnx.attention(*inputs, **attributes)

    monkeypatch.setattr("fastattn._onnx_operator.attention", spy)
    by_onnx(tensors(rng), 23, outputs, new_ops=[operator])
    assert modes == [mode]


def check(got, expected, inputs):
    """float32 within 2e-6 of the largest value (scores are small), infinities in place."""
    assert got.dtype == inputs["Q"].dtype and got.shape == expected.shape
    largest = max(1.0, np.abs(expected[np.isfinite(expected)]).max(initial=0.0))
    np.testing.assert_allclose(got, expected, rtol=0, atol=2e-6 * largest)


@pytest.mark.parametrize("mode", [None, 2])
@pytest.mark.parametrize("rank", [3, 4])
def test_torch_tensors(rank, mode, rng):
    torch = pytest.importorskip("torch")
    inputs = tensors(rng, rank, past=True) | {"attn_mask": rng.random((SQ, P + SK)) < 0.8}
    options = {**heads(rank), "is_causal": 1, "qk_matmul_output_mode": mode}
    expected = fastattn.onnx.attention(**inputs, **options)
    inputs = {name: torch.from_numpy(array) for name, array in inputs.items()}
    got = fastattn.onnx.attention(**inputs, **options)
    for ours, theirs in zip(got, expected, strict=True):
        assert type(ours) is type(theirs)
        np.testing.assert_array_equal(ours, theirs)


# Shapes before the key axis.
MASKS = {
    "bool": [(), (HQ, SQ), (B, HQ, SQ)],
    "float": [(SQ,), (1, SQ), (B, 1, SQ), (1, 1, 1)],
}
MASK_KINDS = [None, *((kind, shape) for kind, shapes in MASKS.items() for shape in shapes)]


def mask_of(rng, kind, width):
    name, shape = kind
    mask = rng.standard_normal((*shape, width)).astype(np.float32)
    return mask > 0 if name == "bool" else mask


@pytest.mark.parametrize("past", [False, True], ids=["new", "past"])
@pytest.mark.parametrize("rank", [3, 4])
@pytest.mark.parametrize("version", OPSETS)
def test_against_onnx(version, rank, past, rng):
    """Each kind of mask, causal or not, with a cache and without, in each opset."""
    windows = [{}, {"left_window_size": 2, "right_window_size": 1}] if version >= 25 else [{}]
    for causal, window, kind in itertools.product((0, 1), windows, MASK_KINDS):
        inputs = tensors(rng, rank, past)
        if kind is not None:
            inputs["attn_mask"] = mask_of(rng, kind, SK + past * P)
        attributes = {"is_causal": causal, "softcap": 2.0, "scale": 0.5, **window, **heads(rank)}
        got = fastattn.onnx.attention(**inputs, **attributes)
        assert got.qk_matmul_output is None
        expected = by_onnx(inputs, version, **attributes)
        for mine, theirs in zip(got[:3], expected, strict=True):
            check(mine, theirs, inputs)


@pytest.mark.parametrize("mode", [0, 1, 2, 3])
@pytest.mark.parametrize("width", [SK, 4, 1])
@pytest.mark.parametrize("kind", [("bool", ()), ("float", (B, 1, SQ))], ids=lambda kind: kind[0])
def test_stages(kind, width, mode, rng):
    """qk_matmul_output in each mode; a mask that is short, and of width 1, ends the keys.

    In mode 0 onnx's evaluator returns capped scores (1.23); the operator's text and its function
    body say before softcap.
    """
    for causal, lengths in itertools.product((0, 1), (None, np.array([width, width // 2]))):
        inputs = tensors(rng) | {"attn_mask": mask_of(rng, kind, width)}
        if lengths is not None:
            inputs["nonpad_kv_seqlen"] = lengths
        attributes = {"is_causal": causal, "scale": 0.25, "softcap": 2.0}
        attributes["qk_matmul_output_mode"] = mode
        got = fastattn.onnx.attention(**inputs, **attributes)
        check(got.Y, by_onnx(inputs, 24, OUTPUTS, **attributes)[0], inputs)
        attributes["softcap"] = 2.0 if mode else 0.0
        check(got.qk_matmul_output, by_onnx(inputs, 24, OUTPUTS, **attributes)[3], inputs)


@pytest.mark.parametrize("of", [np.array, lambda number: np.array([number])[0]],
                         ids=["array", "scalar"])  # fmt: skip
def test_mask_of_rank_0(of, rng):
    inputs = tensors(rng)
    expected = fastattn.onnx.attention(**inputs)
    for nothing in of(True), of(np.float32(0)):
        got = fastattn.onnx.attention(**inputs, attn_mask=nothing)
        np.testing.assert_array_equal(got.Y, expected.Y)
    assert not fastattn.onnx.attention(**inputs, attn_mask=of(False)).Y.any()


def test_lengths_beyond_a_short_mask(rng):
    """The mask leaves out the keys behind it; the queries keep their positions."""
    inputs = tensors(rng) | {"attn_mask": np.ones((SQ, 4), bool)}
    inputs["nonpad_kv_seqlen"] = np.array([SK, 5])
    got = fastattn.onnx.attention(**inputs, is_causal=1)
    check(got.Y, by_onnx(inputs, 24, is_causal=1)[0], inputs)


def test_without_past_nothing_is_copied(rng):
    inputs = tensors(rng, rank=3)
    got = fastattn.onnx.attention(**inputs, **heads(3))
    assert np.shares_memory(got.present_key, inputs["K"])
    assert np.shares_memory(got.present_value, inputs["V"])
    assert got.present_key.shape == (B, HKV, SK, D)
    assert got.Y.flags.c_contiguous and got.Y.shape == (B, SQ, HQ * DV)


@pytest.mark.parametrize("batch, queries", [(B, 0), (0, SQ)])
def test_nothing_with_3_axes(batch, queries):
    Q = np.zeros((batch, queries, HQ * D), np.float32)
    K, V = (np.zeros((batch, SK, HKV * depth), np.float32) for depth in (D, DV))
    got = fastattn.onnx.attention(Q, K, V, **heads(3), qk_matmul_output_mode=3)
    assert got.Y.shape == (batch, queries, HQ * DV)
    assert got.qk_matmul_output.shape == (batch, HQ, queries, SK)


@pytest.mark.parametrize("yes", [np.int64(1), np.True_], ids=repr)
def test_causal_as_numpy_says_it(yes, rng):
    inputs = tensors(rng)
    expected = fastattn.onnx.attention(**inputs, is_causal=1)
    np.testing.assert_array_equal(fastattn.onnx.attention(**inputs, is_causal=yes).Y, expected.Y)


def test_scores_beyond_float16():
    """They are infinite in it, like values, whatever the caller has NumPy warn about."""
    Q = np.full((1, 1, 1, 8), 200, np.float16)
    with np.errstate(all="raise"):
        for mode, expected in enumerate((np.inf, np.inf, np.inf, 1)):
            got = fastattn.onnx.attention(Q, Q, Q, qk_matmul_output_mode=mode, scale=1.0)
            assert got.qk_matmul_output.item() == expected
        for value, expected in (1e30, np.inf), (1e-30, 0):
            V = np.full((1, 1, 1, 3), value, np.float32)
            np.testing.assert_array_equal(fastattn.onnx.attention(Q, Q, V).Y, expected)


def test_values_beyond_float16():
    """Those of bfloat16 are not made Q's float16 before they are averaged."""
    Q = np.zeros((1, 1, 1, 8), np.float16)
    V = np.array([1e5, -1e5], dtype_of("bfloat16")).reshape(1, 1, 2, 1)
    assert fastattn.onnx.attention(Q, Q.repeat(2, 2), V).Y.item() == 0


def test_float64_and_double_softmax(rng):
    """softmax_precision 11 makes a float32 call as exact as its result can hold."""
    wide = tensors(rng, dtype=np.float64)
    expected = by_onnx(wide, 23)[0]
    got = fastattn.onnx.attention(**wide).Y
    assert got.dtype == np.float64
    np.testing.assert_allclose(got, expected, rtol=0, atol=1e-14)
    narrow = {name: tensor.astype(np.float32) for name, tensor in wide.items()}
    expected = by_onnx(narrow, 23)[0].astype(np.float32)
    np.testing.assert_array_equal(
        fastattn.onnx.attention(**narrow, softmax_precision=11).Y, expected
    )
    for precision in (1, 10, 16):  # at least: float32 is what it is computed in anyway
        np.testing.assert_array_equal(
            fastattn.onnx.attention(**narrow, softmax_precision=precision).Y,
            fastattn.onnx.attention(**narrow).Y,
        )


@pytest.mark.parametrize(
    "of_q, of_v", [(np.float32, np.float16), (np.float64, np.float32), (np.float32, np.float64)]
)
def test_values_of_another_type(of_q, of_v, rng):
    """T2, the type of V, may differ from T1; the wider one is computed with, Y is T1."""
    inputs = tensors(rng, dtype=of_q)
    inputs["V"] = inputs["V"].astype(of_v)
    got = fastattn.onnx.attention(**inputs)
    check(got.Y, by_onnx(inputs, 23)[0], inputs)
    assert got.present_value.dtype == of_v
    wider = np.promote_types(of_q, of_v)
    wide = {name: tensor.astype(wider) for name, tensor in inputs.items()}
    np.testing.assert_array_equal(got.Y, fastattn.onnx.attention(**wide).Y.astype(of_q))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mask_of_16_bits(dtype, rng):
    mask = rng.standard_normal((SQ, SK)).astype(np.float16)
    inputs = tensors(rng, dtype=dtype)
    np.testing.assert_array_equal(
        fastattn.onnx.attention(**inputs, attn_mask=mask).Y,
        fastattn.onnx.attention(**inputs, attn_mask=mask.astype(dtype)).Y,
    )


def test_docstring():
    result = doctest.testmod(fastattn.onnx)
    assert result.attempted > 0 and result.failed == 0


def test_onnx_is_imported_late():
    program = """
        import sys, numpy as np, fastattn
        assert "fastattn.onnx" not in sys.modules
        Q = np.ones((1, 1, 2, 4), np.float32)
        assert fastattn.onnx.attention(Q, Q, Q).Y.shape == Q.shape
        assert "onnx" not in sys.modules
        fastattn.onnx.Attention
        assert "onnx" in sys.modules
    """
    result = run(program)
    assert result.returncode == 0, result.stderr
