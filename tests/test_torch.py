# SPDX-License-Identifier: MIT
"""fastattn.torch against torch: the same results, eager, compiled and exported; no gradients."""

import inspect
import itertools

import numpy as np
import pytest

import fastattn
from fastattn import reference

torch = pytest.importorskip("torch")

import torch.nn.functional as F  # noqa: E402
from torch_cases import as_arrays, every_option  # noqa: E402

import fastattn.torch as ft  # noqa: E402

ALLOWED = {torch.float32: 2e-6, torch.float64: 2e-6 * 2.0**-27}  # as in cases.py


def close(ours, theirs):
    assert ours.dtype == theirs.dtype
    torch.testing.assert_close(ours, theirs, rtol=0, atol=ALLOWED[ours.dtype])


# ---- scaled_dot_product_attention ----------------------------------------------------------------

# Shapes of query, key, value and arguments, all of which torch accepts.
SDPA = {
    "plain": ((2, 4, 17, 16), (2, 4, 33, 16), (2, 4, 33, 16), {}),
    "value depth": ((2, 4, 17, 16), (2, 4, 33, 16), (2, 4, 33, 24), {}),
    "rank 2": ((17, 16), (33, 16), (33, 16), {}),
    "rank 3": ((4, 17, 16), (4, 33, 16), (4, 33, 16), {}),
    "rank 5": ((2, 3, 4, 17, 16), (2, 3, 4, 33, 16), (2, 3, 4, 33, 16), {}),
    "rank 2 query": ((17, 16), (4, 33, 16), (4, 33, 16), {}),
    "rank 2 but values": ((17, 16), (33, 16), (4, 33, 16), {}),
    "rank 2 but keys": ((17, 16), (4, 33, 16), (33, 16), {}),
    "broadcast batch": ((2, 4, 17, 16), (1, 4, 33, 16), (4, 33, 16), {}),
    "one kv head": ((2, 4, 17, 16), (2, 1, 33, 16), (2, 1, 33, 16), {}),
    "one query head": ((2, 1, 17, 16), (2, 4, 33, 16), (2, 4, 33, 16), {}),
    "causal": ((2, 4, 33, 16), (2, 4, 33, 16), (2, 4, 33, 16), {"is_causal": True}),
    "causal, more keys": ((2, 4, 17, 16), (2, 4, 33, 16), (2, 4, 33, 16), {"is_causal": True}),
    "causal, fewer keys": ((2, 4, 33, 16), (2, 4, 17, 16), (2, 4, 17, 16), {"is_causal": True}),
    "scale": ((2, 4, 17, 16), (2, 4, 33, 16), (2, 4, 33, 16), {"scale": -0.3}),
    "gqa": ((2, 8, 17, 16), (2, 2, 33, 16), (2, 2, 33, 16), {"enable_gqa": True}),
    "gqa, other values": ((2, 8, 17, 16), (2, 2, 33, 16), (2, 4, 33, 16), {"enable_gqa": True}),
    "gqa, other keys": ((6, 17, 16), (3, 33, 16), (2, 33, 8), {"enable_gqa": True}),
    "gqa, values alone": ((2, 4, 17, 16), (2, 4, 17, 16), (2, 2, 17, 16), {"enable_gqa": True}),
    "gqa, one value head": ((2, 8, 17, 16), (2, 2, 33, 16), (2, 1, 33, 16), {"enable_gqa": True}),
    "no keys": ((2, 4, 17, 16), (2, 4, 0, 16), (2, 4, 0, 16), {}),
    "no queries": ((2, 4, 0, 16), (2, 4, 33, 16), (2, 4, 33, 16), {}),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", SDPA.values(), ids=SDPA)
def test_sdpa(randn, case, dtype):
    *shapes, options = case
    q, k, v = (randn(*shape, dtype=dtype) for shape in shapes)
    theirs = F.scaled_dot_product_attention(q, k, v, **options)
    close(ft.scaled_dot_product_attention(q, k, v, **options), theirs)
    arrays = (tensor.numpy() for tensor in (q, k, v))
    close(torch.from_numpy(fastattn.scaled_dot_product_attention(*arrays, **options)), theirs)


@pytest.mark.parametrize(
    "shape", [(17, 33), (1, 33), (17, 1), (4, 17, 33), (2, 1, 1, 33), (2, 4, 17, 33)], ids=str
)
@pytest.mark.parametrize("kind", ["bool", "float", "-inf", "nothing", "-inf everywhere"])
def test_sdpa_mask(randn, shape, kind):
    q, k, v = randn(2, 4, 17, 16), randn(2, 4, 33, 16), randn(2, 4, 33, 16)
    mask = randn(*shape)
    mask = {
        "bool": mask > 0,
        "float": mask,
        "-inf": mask.masked_fill(mask > 0, -torch.inf),
        "nothing": torch.zeros(shape, dtype=torch.bool),
        "-inf everywhere": torch.full(shape, -torch.inf),
    }[kind]
    ours = ft.scaled_dot_product_attention(q, k, v, mask)
    close(ours, F.scaled_dot_product_attention(q, k, v, mask))


@pytest.mark.parametrize("name", ["transposed", "packed", "expanded", "flipped", "wide"])
def test_sdpa_strides(randn, name):
    def view(tensor):
        return {
            "transposed": lambda: tensor.transpose(1, 2).contiguous().transpose(1, 2),
            "packed": lambda: torch.stack([tensor] * 3, 2)[:, :, 1],
            "expanded": lambda: tensor[:1].expand(tensor.shape),
            "flipped": lambda: tensor.contiguous().flip(2)[:, ::2],
            "wide": lambda: tensor.transpose(2, 3).contiguous().transpose(2, 3),
        }[name]()

    q, k, v = (view(randn(2, 4, 33, 16)) for _ in range(3))
    ours = ft.scaled_dot_product_attention(q, k, v)
    close(ours, F.scaled_dot_product_attention(q, k, v))
    if name == "transposed":
        assert ours.transpose(1, 2).is_contiguous()  # as torch: no copy before the next layer


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("masked", [None, torch.bool, torch.float32, "same"], ids=str)
def test_sdpa_16_bit(randn, dtype, masked):
    q, k, v = (randn(2, 4, 65, 32, dtype=dtype) for _ in range(3))
    mask = None
    if masked is not None:
        mask = randn(65, 65)
        mask = mask > 0 if masked is torch.bool else mask.to(dtype if masked == "same" else masked)
    ours = ft.scaled_dot_product_attention(q, k, v, mask)
    theirs = F.scaled_dot_product_attention(q, k, v, mask)
    exact = reference.attention(
        *(each.double().numpy() for each in (q, k, v)),
        attn_mask=mask if mask is None or masked is torch.bool else mask.double().numpy(),
    )
    assert ours.dtype == dtype
    error, allowed = (
        (each.double() - torch.from_numpy(exact)).abs().max() for each in (ours, theirs)
    )
    assert error <= 2 * allowed


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"dropout_p": 0.1}, NotImplementedError, "dropout_p: expected 0.0, got 0.1"),
        ({"dropout_p": -0.1}, NotImplementedError, "dropout_p: expected 0.0, got -0.1"),
        ({"dropout_p": False}, TypeError, "dropout_p: expected a number, got bool"),
        ({"dropout_p": np.zeros(2)}, TypeError, "dropout_p: expected a number, got numpy.ndarray"),
        (
            {"is_causal": True, "attn_mask": torch.tensor(True)},
            ValueError,
            "attn_mask: expected No",
        ),
        ({"key": torch.zeros(2, 2, 5, 8)}, ValueError, "key: expected 4 heads or 1 without enable"),
        (
            {"attn_mask": torch.zeros(3, 5, dtype=torch.int8)},
            TypeError,
            "attn_mask: expected dtype",
        ),
        (
            {"query": torch.zeros(2, 4, 3, 8).double()},
            TypeError,
            "key: expected dtype float64 with float64 query",
        ),
        (
            {"query": torch.zeros(2, 4, 3, 8, device="meta")},
            TypeError,
            "query: expected a strided array",
        ),
        ({"query": None}, TypeError, "query: expected a torch.Tensor, got NoneType"),
        ({"key": [1.0]}, TypeError, "key: expected a torch.Tensor, got list"),
        ({"is_causal": 1}, TypeError, "is_causal: expected True or False, got int"),
        ({"enable_gqa": "no"}, TypeError, "enable_gqa: expected True or False, got str"),
        ({"query": torch.zeros(8)}, ValueError, "query: expected 2 to 9 axes, got shape (8,)"),
        ({"key": torch.zeros(2, 4, 5, 4)}, ValueError, "key: expected depth 8 like query"),
        (
            {"query": torch.zeros(2, 4, 5, 8), "value": torch.zeros(2, 4, 5, 8).half()},
            TypeError,
            "value: expected dtype float32 like key",
        ),
    ],
    ids=[
        "dropout",
        "dropout below 0",
        "dropout bool",
        "dropout array",
        "both",
        "heads",
        "mask dtype",
        "dtypes",
        "device",
        "None",
        "list",
        "causal",
        "gqa",
        "rank",
        "depth",
        "same shapes",
    ],
)
def test_sdpa_refuses(change, error, message):
    given = {"query": torch.zeros(2, 4, 3, 8), "key": torch.zeros(2, 4, 5, 8)}
    given |= {"value": torch.zeros(2, 4, 5, 8)} | change
    with pytest.raises(error) as caught:
        ft.scaled_dot_product_attention(**given)
    assert str(caught.value).startswith(message)


# ---- attention -----------------------------------------------------------------------------------


def test_attention_is_that_of_the_arrays(randn):
    tensors, options = every_option(randn)
    out, lse = ft.attention(*tensors, **options)
    arrays = {name: as_arrays(value) for name, value in options.items()}
    expected = fastattn.attention(*(t.numpy() for t in tensors), **arrays)
    np.testing.assert_array_equal(out.numpy(), expected[0])
    np.testing.assert_array_equal(lse.numpy(), expected[1])


@pytest.mark.parametrize(
    "name",
    ["attn_mask", "causal", "window_size", "scale", "softcap", "alibi_slopes", "sinks",
     "kv_lengths", "kv_starts", "return_lse"],
)  # fmt: skip
def test_one_option_alone(randn, name):
    """The shortest way to the core hands few of them on: it must not be taken then."""
    tensors, options = every_option(randn)
    options = {name: options[name], "layout": "bshd"}
    arrays = {name: as_arrays(value) for name, value in options.items()}
    expected = fastattn.attention(*(t.numpy() for t in tensors), **arrays)
    found = ft.attention(*tensors, **options)
    pairs = zip(found, expected, strict=True) if name == "return_lse" else [(found, expected)]
    for ours, theirs in pairs:
        np.testing.assert_array_equal(ours.numpy(), theirs)
    assert name == "return_lse" or not torch.equal(found, ft.attention(*tensors, layout="bshd"))


def test_attention_reads_tensors_where_they_lie(randn, monkeypatch):
    seen = []
    monkeypatch.setattr(
        fastattn, "attention", lambda *arrays, **_: seen.extend(arrays) or arrays[0]
    )
    tensors = [randn(1, 2, 3, 4)[:, :, ::2] for _ in range(3)]
    result = ft.attention(*tensors)
    assert [each.ctypes.data for each in seen] == [each.data_ptr() for each in tensors]
    assert result.data_ptr() == tensors[0].data_ptr()


def test_one_query_head_is_not_copied(randn, monkeypatch):
    seen = []
    monkeypatch.setattr(fastattn, "attention", lambda *qkv, **_: seen.append(qkv[0]) or qkv[0])
    q, k = randn(2, 1, 3, 4), randn(2, 4, 5, 4)
    ft.scaled_dot_product_attention(q, k, k)
    assert seen[0].shape == (2, 4, 3, 4) and seen[0].ctypes.data == q.data_ptr()


@pytest.mark.parametrize("name", ["attention", "attention_varlen"])
def test_every_option_is_handed_on(name, randn, monkeypatch):
    names = inspect.signature(getattr(fastattn, name)).parameters.keys() - {"q", "k", "v", "out"}
    options = {
        "causal": True, "window_size": (3, 4), "scale": 0.5, "softcap": 2.0, "layout": "bshd",
        "precision": "high", "return_lse": True, "num_threads": 7,
    }  # fmt: skip
    options = {each: options[each] if each in options else randn(2) for each in names}
    result, seen = np.zeros((2, 2, 2), np.float32), {}
    monkeypatch.setattr(fastattn, name, lambda *_, **given: seen.update(given) or [result] * 2)
    getattr(ft, name)(*(randn(2, 2, 2) for _ in "qkv"), **options)
    for option, value in options.items():
        np.testing.assert_array_equal(seen[option], as_arrays(value))


def test_pages_give_what_arrays_do(randn):
    q, k, v = randn(2, 3, 4, 16), randn(5, 8, 2, 16), randn(5, 8, 2, 16)
    options = {
        "block_table": torch.tensor([[3, 1], [0, 4]]), "layout": "bshd",
        "kv_lengths": torch.tensor([11, 5]), "causal": True,
    }  # fmt: skip
    arrays = {name: as_arrays(value) for name, value in options.items()}
    expected = fastattn.attention(q.numpy(), k.numpy(), v.numpy(), **arrays)
    np.testing.assert_array_equal(ft.attention(q, k, v, **options).numpy(), expected)
    compiled = torch.compile(ft.attention, fullgraph=True, backend="eager")
    np.testing.assert_array_equal(compiled(q, k, v, **options).numpy(), expected)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_varlen(randn, compiled):
    q, k, v = randn(9, 4, 16), randn(12, 2, 16), randn(12, 2, 8)
    cu_q, cu_k = torch.tensor([0, 4, 4, 9]), torch.tensor([0, 5, 6, 12])
    call = ft.attention_varlen
    call = torch.compile(call, fullgraph=True, backend="eager") if compiled else call
    options = {"causal": True, "sinks": torch.ones(4), "kv_starts": torch.tensor([2, 0, 1])}
    out, lse = call(q, k, v, cu_q, cu_k, return_lse=True, **options)
    expected = fastattn.attention_varlen(
        q.numpy(), k.numpy(), v.numpy(), cu_q.numpy(), cu_k.numpy(), return_lse=True,
        **{name: as_arrays(value) for name, value in options.items()},
    )  # fmt: skip
    np.testing.assert_array_equal(out.numpy(), expected[0])
    np.testing.assert_array_equal(lse.numpy(), expected[1])


# ---- results that depend on memory ---------------------------------------------------------------


def test_result_owns_its_memory(randn):
    q = randn(1, 2, 3, 4)
    first = ft.attention(q, q, q)
    kept = first.clone()
    for _ in range(100):
        ft.attention(q + 1, q, q)
    assert torch.equal(first, kept)


def test_negative_views(randn):
    """torch negates the imaginary part of a conjugate lazily; its memory is not its value."""
    negative = torch.view_as_complex(randn(1, 2, 3, 4, 2)).conj().imag
    assert negative.is_neg()
    plain = negative.resolve_neg()
    for names in itertools.product([False, True], repeat=3):
        mixed = [negative if lazily else plain for lazily in names]
        if any(names):
            with pytest.raises(TypeError, match=r"resolve_neg\(\)"):
                ft.attention(*mixed)
