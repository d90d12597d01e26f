# SPDX-License-Identifier: MIT
"""patch_sdpa: what goes to fastattn, what stays with torch, and that nobody sees a difference."""

import contextlib
import doctest
import sys

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch.autograd import forward_ad  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402

import fastattn  # noqa: E402
import fastattn.torch as ft  # noqa: E402

TORCH = F.scaled_dot_product_attention
pytestmark = pytest.mark.usefixtures("no_patch_left")


@pytest.fixture
def calls(monkeypatch):
    """The list of calls that reach the core."""
    seen = []

    def attention(q, k, v, **options):
        seen.append((q, k, v, options))
        return original(q, k, v, **options)

    original = fastattn.attention
    monkeypatch.setattr(fastattn, "attention", attention)
    return seen


def compare(function, tolerance=2e-6):
    expected = function()
    with ft.patch_sdpa():
        torch.testing.assert_close(function(), expected, rtol=0, atol=tolerance)


# ---- what fastattn computes ----------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"is_causal": True},
        {"attn_mask": torch.eye(5, 7).bool()},
        {"attn_mask": torch.eye(5, 7), "scale": 0.5},
        {"scale": np.float32(0.5)},
        {"scale": 1},
        {"attn_mask": causal_upper_left(5, 7)},
        {"attn_mask": causal_lower_right(5, 7)},
        {"attn_mask": causal_lower_right(5, 7), "scale": 0.05},
        {"attn_mask": causal_lower_right(9, 9)},  # which torch takes for is_causal
    ],
    ids=lambda options: "-".join(map(str, options)),
)
def test_functional(calls, randn, dtype, options):
    q, k, v = (randn(2, 4, length, 8, dtype=dtype) for length in (5, 7, 7))
    compare(lambda: F.scaled_dot_product_attention(q, k, v, **options))
    assert len(calls) == 1
    assert calls[0][0].ctypes.data == q.data_ptr()


def test_mask_of_more_axes_than_the_query(calls, randn):
    q, k, mask = randn(5, 8), randn(4, 7, 8), randn(4, 5, 7)
    compare(lambda: F.scaled_dot_product_attention(q, k, k, mask))
    assert len(calls) == 1


def test_lower_right_makes_no_table(calls, randn):
    q, k = randn(2, 4, 5, 8), randn(2, 4, 7, 8)
    with ft.patch_sdpa():
        F.scaled_dot_product_attention(q, k, k, causal_lower_right(5, 7))
    assert calls[0][3].get("attn_mask") is None and calls[0][3]["causal"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_16_bit(calls, randn, dtype):
    q = randn(2, 4, 7, 8).to(dtype)
    compare(lambda: F.scaled_dot_product_attention(q, q, q), 2 * torch.finfo(dtype).eps)
    assert len(calls) == 1


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    "mask", [torch.eye(7), torch.eye(7).bool(), torch.full((7, 7), -1e5)], ids=["", "bool", "far"]
)  # the last one is -inf in float16
def test_autocast(calls, randn, half, mask):
    q = randn(2, 4, 7, 8)

    def run():
        with torch.autocast("cpu", half):
            return F.scaled_dot_product_attention(q, q, q, mask)

    assert run().dtype == half
    compare(run, 2 * torch.finfo(half).eps)
    assert len(calls) == 1


def test_autocast_leaves_float64(calls, randn):
    q = randn(2, 4, 7, 8, dtype=torch.float64)
    with torch.autocast("cpu", torch.bfloat16):
        compare(lambda: F.scaled_dot_product_attention(q, q, q))
    assert len(calls) == 1


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_multihead_attention(calls, randn, padded, need_weights):
    module = torch.nn.MultiheadAttention(32, 4, batch_first=True).eval()
    x = randn(2, 7, 32)
    padding = torch.arange(7) >= torch.tensor([[7], [4]]) if padded else None

    def run():
        with torch.no_grad():
            return module(x, x, x, key_padding_mask=padding, need_weights=need_weights)[0]

    compare(run)
    # Whoever wants the weights gets them from torch, which has to make the table then.
    assert len(calls) == (not need_weights)


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("masked", [None, "padding", "causal"])
def test_transformer_encoder(calls, randn, masked):
    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
    encoder = torch.nn.TransformerEncoder(layer, 2).eval()
    x, lengths = randn(2, 7, 32), torch.tensor([[7], [4]])
    options = {}
    if masked == "padding":
        options["src_key_padding_mask"] = torch.arange(7) >= lengths
    elif masked == "causal":
        mask = torch.nn.Transformer.generate_square_subsequent_mask(7)
        options = {"mask": mask, "is_causal": True}

    def run():
        with torch.no_grad():
            out = encoder(x, **options)
        return out.masked_fill((torch.arange(7) >= lengths)[..., None], 0)  # torch zeroes padding

    compare(run, 1e-5)  # two layers, each dividing by a deviation
    assert len(calls) == 2


def test_compiled(randn):
    """Also what was compiled before the patch, and after it: dynamo guards the function."""
    graphs = []

    def backend(graph, _):
        graphs.append({str(node.target) for node in graph.graph.nodes})
        return graph

    @torch.compile(backend=backend, fullgraph=True)
    def attend(q):
        return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    q = randn(2, 4, 7, 8)
    compare(lambda: attend(q))
    assert "fastattn.attention.default" not in graphs[0]
    assert "fastattn.attention.default" in graphs[1]
    attend(q)
    assert len(graphs) == 2


def test_compiled_beside_a_default_device(randn):
    """What the call adds of its own, the position of query 0, is on the CPU like the query."""
    attend = torch.compile(
        lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), backend="eager"
    )
    q = randn(1, 2, 3, 4)
    with torch.device("meta"):
        compare(lambda: attend(q))


def test_modes(calls, randn):
    """A mode sees the call, as it would torch's, and does not keep it from fastattn."""

    class Recorder(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function)
            return function(*args, **(kwargs or {}))

    q, mask, seen = randn(1, 2, 3, 4), causal_lower_right(3, 3), []
    with ft.patch_sdpa(), torch.device("cpu"), Recorder():
        F.scaled_dot_product_attention(q, q, q, scale=0.5)
        F.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    assert seen == [seen[0]] * 2 and len(calls) == 2
    assert calls[0][3]["scale"] == 0.5 and calls[1][3]["causal"]


@pytest.mark.parametrize("strict", [False, True])
def test_exported(randn, strict):
    class Attend(torch.nn.Module):
        def forward(self, q):
            return F.scaled_dot_product_attention(q, q, q, is_causal=True)

    with ft.patch_sdpa():
        graph = torch.export.export(Attend(), (randn(1, 2, 3, 4),), strict=strict).graph
    assert "fastattn.attention.default" in {str(node.target) for node in graph.nodes}


# ---- what torch computes -------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [None, causal_lower_right(3, 5)], ids=["", "lower right"])
def test_dropout(calls, randn, mask):
    q, k = randn(1, 2, 3, 4), randn(1, 2, 5, 4)
    with ft.patch_sdpa():
        assert F.scaled_dot_product_attention(q, k, k, mask, dropout_p=1.0).abs().max() == 0
    assert not calls


@pytest.mark.parametrize("shape", [(0, 5, 4), (3, 0, 4), (3, 5, 0)], ids=str)
def test_nothing_to_compute(calls, randn, shape):
    queries, keys, depth = shape
    q, k = randn(1, 2, queries, depth), randn(1, 2, keys, depth)
    for wrap in lambda f: f, torch.compile(backend="eager"):
        compare(lambda wrap=wrap: wrap(F.scaled_dot_product_attention)(q, k, k), 0)
    assert not calls


@pytest.mark.parametrize("lengths", [(2, 5), (3, 4)], ids=["queries", "keys"])
def test_lower_right_of_other_lengths(randn, lengths):
    """A table that does not fit is an error, whoever finds it."""
    q, k = randn(1, 2, 3, 4), randn(1, 2, 5, 4)
    for patch in contextlib.nullcontext, ft.patch_sdpa:
        with patch(), pytest.raises((RuntimeError, ValueError)):
            F.scaled_dot_product_attention(q, k, k, causal_lower_right(*lengths))


@pytest.mark.parametrize("which", range(4), ids=["query", "key", "value", "mask"])
def test_gradient(calls, randn, which):
    tensors = [randn(1, 2, 3, 4) for _ in range(3)] + [randn(3, 3)]
    tensors[which].requires_grad_()
    with ft.patch_sdpa():
        F.scaled_dot_product_attention(*tensors).sum().backward()
        assert not calls and tensors[which].grad is not None
        with torch.no_grad():
            F.scaled_dot_product_attention(*tensors)
        assert len(calls) == 1


def test_transforms(calls, randn):
    q = randn(3, 1, 2, 3, 4)
    compare(lambda: torch.vmap(F.scaled_dot_product_attention)(q, q, q))
    compare(lambda: torch.func.jvp(F.scaled_dot_product_attention, (q, q, q), (q, q, q))[1])
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(q, q)
        compare(lambda: forward_ad.unpack_dual(F.scaled_dot_product_attention(dual, q, q)).tangent)
    assert not calls


def test_other_devices(calls):
    q = torch.empty(1, 2, 3, 4, device="meta")
    with ft.patch_sdpa():
        assert F.scaled_dot_product_attention(q, q, q).device.type == "meta"
    assert not calls


def test_subclass(calls, randn):
    class Mine(torch.Tensor):
        pass

    q = randn(1, 2, 3, 4).as_subclass(Mine)
    for mode in contextlib.nullcontext(), torch.device("cpu"):
        with ft.patch_sdpa(), mode:
            assert type(F.scaled_dot_product_attention(q, q, q)) is Mine
    assert not calls


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted(calls, randn):
    def attend(q, scale: float):
        return F.scaled_dot_product_attention(q, q, q, is_causal=True, scale=scale)

    q = randn(1, 2, 3, 4)
    with ft.patch_sdpa():
        scripted = torch.jit.script(attend)
        assert torch.equal(scripted(q, 0.3), TORCH(q, q, q, is_causal=True, scale=0.3))
    assert not calls


@pytest.mark.filterwarnings("ignore:.*nested tensors")
def test_nested(calls, randn):
    rows = [randn(3, 2, 4), randn(5, 2, 4)]
    strided = torch.nested.nested_tensor([row.transpose(0, 1) for row in rows])
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged).transpose(1, 2)
    for q in strided, jagged:
        compare(lambda q=q: F.scaled_dot_product_attention(q, q, q).unbind()[1])
    assert not calls


@pytest.mark.parametrize("scale", [torch.tensor(0.5), True, torch.nan, torch.inf], ids=repr)
def test_scales_that_are_no_finite_numbers(calls, randn, scale):
    q, mask = randn(1, 2, 3, 4), causal_lower_right(3, 3)
    expected = F.scaled_dot_product_attention(q, q, q, scale=scale)
    with ft.patch_sdpa():
        found = F.scaled_dot_product_attention(q, q, q, scale=scale)
        F.scaled_dot_product_attention(q, q, q, mask, scale=scale)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert not calls


@pytest.mark.parametrize("which", range(4), ids=["query", "key", "value", "mask"])
def test_memory_that_is_not_plain(calls, randn, which):
    """Negated lazily, or behind a header of odd length."""
    tensors = [randn(1, 2, 3, 4) for _ in range(3)] + [randn(3, 3)]
    shape, plain = tensors[which].shape, tensors[which].flatten()
    packed = bytearray(b"#" + plain.numpy().tobytes())
    for other in torch._neg_view(plain), torch.frombuffer(packed, dtype=plain.dtype, offset=1):
        tensors[which] = other.view(shape)
        compare(lambda: F.scaled_dot_product_attention(*tensors), 0)
    assert not calls


@pytest.mark.parametrize("which", range(4), ids=["query", "key", "value", "mask"])
def test_without_memory(calls, randn, which):
    """Wrapped by functionalization, or by a transform that is over."""
    tensors, wrapped = [randn(1, 2, 3, 4) for _ in range(3)] + [randn(3, 3)], []
    torch.func.grad(lambda x: (wrapped.append(x), x.sum())[1])(tensors[which])
    for each in torch._to_functional_tensor(tensors[which]), wrapped[0]:
        tensors[which] = each
        with torch.no_grad():
            compare(lambda: F.scaled_dot_product_attention(*tensors), 0)
    assert not calls


def test_more_axes_than_fastattn_takes(calls, randn):
    q = randn(1, 1, 1, 1, 1, 1, 1, 2, 3, 4)
    for query, key in (q, q), (q[0, 0], q), (q, q[0]):
        compare(lambda query=query, key=key: F.scaled_dot_product_attention(query, key, key))
    assert not calls
    compare(lambda: F.scaled_dot_product_attention(q[0], q[0], q[0]))
    assert len(calls) == 1


@pytest.mark.parametrize(
    "options",
    [
        {"attn_mask": torch.ones(3, dtype=torch.bool)},
        {"attn_mask": torch.ones(1, 1, 1, 3, 3)},
        {"attn_mask": [True]},
        {"attn_mask": torch.ones(3, 3, dtype=torch.int8)},
        {"attn_mask": torch.ones(3, 3, dtype=torch.float64)},
        {"attn_mask": causal_lower_right(3, 3), "is_causal": True},
        {"attn_mask": causal_lower_right(2, 3), "query": torch.ones(4)},
        {"attn_mask": causal_lower_right(2, 3), "key": torch.ones(4)},
        {"key": torch.ones(1, 2, 3, 4, dtype=torch.float64)},
        {"value": torch.ones(1, 2, 3, 4, dtype=torch.float64)},
        {"key": [1.0]},
        {"dropout_p": np.zeros(())},
        {"dropout_p": torch.zeros(2)},
    ],
    ids=["rank 1", "rank 5", "mask list", "int", "float64", "both", "query axis", "key axis",
         "key dtype", "value dtype", "list", "dropout array", "dropout tensor"],
)  # fmt: skip
@pytest.mark.parametrize("autocast", [False, True], ids=["", "autocast"])
def test_errors_are_those_of_torch(calls, randn, options, autocast):
    given = dict.fromkeys(["query", "key", "value"], randn(1, 2, 3, 4)) | options
    tensors = [given.pop(name) for name in ("query", "key", "value")]
    messages = []
    for patch in contextlib.nullcontext, ft.patch_sdpa:
        enabled = torch.autocast("cpu", torch.bfloat16, enabled=autocast)
        with patch(), enabled, pytest.raises(Exception) as caught:
            F.scaled_dot_product_attention(*tensors, **given)
        messages.append((caught.type, str(caught.value).partition("\n")[0]))
    assert messages[0] == messages[1] and not calls


def test_both_masks_are_what_torch_makes_of_them(calls, randn):
    q, mask = randn(1, 2, 3, 4), torch.eye(3).bool()
    compare(lambda: F.scaled_dot_product_attention(q, q, q, mask, is_causal=True))
    assert not calls


# ---- on and off ----------------------------------------------------------------------------------


def test_example():
    module = sys.modules["fastattn.torch._sdpa"]
    result = doctest.testmod(module)
    assert result.attempted > 0 and result.failed == 0


def test_nested_patches(calls, randn):
    q = randn(1, 2, 3, 4)
    first, second = ft.patch_sdpa(), ft.patch_sdpa()
    first.undo()
    F.scaled_dot_product_attention(q, q, q)
    assert len(calls) == 1
    second.undo()
    F.scaled_dot_product_attention(q, q, q)
    assert len(calls) == 1
