# SPDX-License-Identifier: MIT
"""What fastattn.torch takes and refuses, where it reads memory and where it needs the operator."""

import numpy as np
import pytest

import fastattn

torch = pytest.importorskip("torch")

import fastattn.torch as ft  # noqa: E402

TAKEN = [
    {"window_size": (2**70, 0)},
    {"attn_mask": np.tri(6, dtype=bool)},
    {"attn_mask": np.tri(6, dtype=bool)[::-1]},
    {"attn_mask": np.float32(0.5)},
    {"kv_lengths": [6, 4], "sinks": np.ones(4)},
    {"kv_lengths": np.int64(5), "v_scale": 2**70},
    {"kv_starts": np.array([1, 2])[::-1]},
    {"softcap": 0},
    {"causal": np.True_, "scale": np.float32(0.5), "num_threads": np.int64(1)},
]
REFUSED = [
    ({"window_size": 3}, TypeError, "window_size: expected a pair (left, right), got int"),
    ({"window_size": ("a", 1)}, TypeError, "window_size: expected an integer, got str"),
    ({"causal": 1}, TypeError, "causal: expected True or False, got int"),
    ({"return_lse": 1}, TypeError, "return_lse: expected True or False, got int"),
    ({"return_lse": 0}, TypeError, "return_lse: expected True or False, got int"),
    ({"num_threads": True}, TypeError, "num_threads: expected an integer, got bool"),
    ({"scale": "1"}, TypeError, "scale: expected a number, got str"),
    ({"softcap": None}, TypeError, "softcap: expected a number, got NoneType"),
    ({"softcap": False}, TypeError, "softcap: expected a number, got bool"),
    ({"softcap": torch.tensor(0.0)}, TypeError, "softcap: expected a number, got torch.Tensor"),
    ({"softcap": np.zeros(2)}, TypeError, "softcap: expected a number, got numpy.ndarray"),
    ({"layout": None}, TypeError, "layout: expected one of 'bhsd', 'bshd', got NoneType"),
    ({"precision": 1}, TypeError, "precision: expected one of 'highest', 'high', 'medium', got"),
    ({"attn_mask": [[True]]}, TypeError, "attn_mask: expected a torch.Tensor, got list"),
    ({"k": None}, TypeError, "k: expected a torch.Tensor, got NoneType"),
    ({"v": [1.0]}, TypeError, "v: expected a torch.Tensor, got list"),
    ({"kv_lengths": [1, True]}, TypeError, "kv_lengths: expected integers, got dtype bool"),
    ({"kv_lengths": [1, 2.5]}, TypeError, "kv_lengths: expected integers, got dtype float64"),
    ({"kv_lengths": [1, 2**70]}, ValueError, "kv_lengths: expected integers of at most 64 bits"),
    ({"q_offset": 2**70}, ValueError, "q_offset: expected "),
    ({"k_scale": np.inf}, ValueError, "k_scale: expected a finite number, got inf"),
    ({"k_scale": True}, TypeError, "k_scale: expected a number, got bool"),
    ({"sinks": ["x"] * 4}, TypeError, "sinks: expected real numbers, got dtype str"),
    ({"sinks": "x"}, TypeError, "sinks: expected an array of numbers, got str"),
    ({"sinks": [[1], [1, 2]]}, ValueError, "sinks: expected an array of numbers, got a list of"),
]


@pytest.fixture(params=[False, True], ids=["eager", "operator"])
def grad(request):
    """Whether queries need the operator, or are read where they lie."""
    return request.param


@pytest.fixture
def q(grad, randn):
    return randn(2, 4, 6, 8).requires_grad_(grad)


@pytest.mark.parametrize("options", TAKEN, ids=lambda options: "-".join(options))
def test_what_the_operator_takes(q, options):
    plain = q.detach()
    ours = ft.attention(q, plain, plain, **options).detach().numpy()
    np.testing.assert_array_equal(ours, fastattn.attention(*[plain.numpy()] * 3, **options))


def test_no_lengths_of_no_batch(q):
    out, lse = ft.attention(q[:0], q[:0], q[:0], kv_lengths=[], return_lse=True)
    assert out.shape == (0, 4, 6, 8) and lse.shape == (0, 4, 6)


@pytest.mark.parametrize("lengths", [[6, True], (np.True_, 4), [[6], [True]]], ids=str)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_bool_is_no_length_in_a_graph_either(q, lengths):
    """torch takes it for 0 or 1."""
    with pytest.raises(TypeError, match=r"^kv_lengths: expected integers, got dtype bool"):
        torch.jit.trace(lambda q: ft.attention(q, q, q, kv_lengths=lengths), q)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_reversed_array_in_a_graph(randn):
    """No tensor has its strides, whatever it is converted to."""
    q, slopes = randn(2, 4, 6, 8), np.array([0.1, 0.2, 0.3, 1.7])[::-1]

    def attend(q):
        return ft.attention(q, q, q, alibi_slopes=slopes)

    assert torch.equal(torch.jit.trace(attend, q)(q), attend(q))


def test_bool_is_no_length_when_compiled(q):
    attend = torch.compile(ft.attention, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match="kv_lengths: expected integers, got dtype bool"):
        attend(q, q, q, kv_lengths=[6, True])


@pytest.fixture
def coarse_default():
    torch.set_default_dtype(torch.bfloat16)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("compiled", [False, True], ids=["called", "compiled"])
@pytest.mark.parametrize("k_scale", [0.3, [0.1, 0.2, 0.3, 1.7]], ids=["number", "list"])
def test_numbers_are_not_rounded(q, coarse_default, compiled, k_scale):
    """To no default dtype of torch."""
    q = q.detach().double().requires_grad_(q.requires_grad)
    options = {"alibi_slopes": [0.1, 0.2, 0.3, 1.7], "sinks": (0.4, 0.5, 0.6, 0.7)}
    options["k_scale"] = k_scale
    attend = torch.compile(ft.attention, backend="eager") if compiled else ft.attention
    ours = attend(q, q.detach(), q.detach(), **options).detach().numpy()
    arrays = [q.detach().numpy()] * 3
    np.testing.assert_array_equal(ours, fastattn.attention(*arrays, **options))


def test_table_that_the_operator_takes(q, randn):
    pages = randn(3, 4, 6, 8)
    expected = ft.attention(q, pages, pages, block_table=torch.tensor([[2], [1]]))
    for table in [[2], [1]], np.array([[2], [1]]):
        assert torch.equal(ft.attention(q, pages, pages, block_table=table), expected)


@pytest.mark.parametrize("options, error, message", REFUSED, ids=str)
def test_what_the_operator_refuses(q, options, error, message):
    with pytest.raises(error) as caught:
        ft.attention(q, **{"k": q, "v": q} | options)
    assert str(caught.value).startswith(message)


def test_default_device_of_torch(q):
    plain = q.detach()
    for options in {"kv_lengths": [6, 4]}, {"q_offset": 1}, {"attn_mask": np.tri(6, dtype=bool)}:
        expected = ft.attention(q, plain, plain, **options)
        with torch.device("meta"):
            assert torch.equal(ft.attention(q, plain, plain, **options), expected)


SHAPES = {  # of q, k, v, and what is wrong
    "batches": ((2, 4, 6, 8), (3, 4, 6, 8), (3, 4, 6, 8), "k: expected leading axes that broadca"),
    "one axis": ((8,), (4, 6, 8), (4, 6, 8), "q: expected 2 to "),
    "no axes": ((2, 4, 6, 8), (2, 4, 6, 8), (), "v: expected 2 to "),
}


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
@pytest.mark.parametrize("case", SHAPES.values(), ids=SHAPES)
def test_shapes_that_have_no_result(randn, grad, case, layout):
    *shapes, message = case
    q, k, v = (randn(*shape) for shape in shapes)
    with pytest.raises(ValueError) as caught:
        ft.attention(q.requires_grad_(grad), k, v, layout=layout)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("name", ["q", "v"])
def test_packs_that_have_no_result(q, name):
    tensors = {"q": q[0], "k": q[0], "v": q[0]} | {name: q[0, 0, 0, 0]}
    with pytest.raises(ValueError, match=rf"^{name}: expected 3 axes .* got shape \(\)$"):
        ft.attention_varlen(**tensors, cu_seqlens_q=torch.tensor([0, 4]))


@pytest.mark.parametrize("is_causal", [False, True])
def test_sdpa_names_what_has_no_result(q, randn, is_causal):
    other = randn(3, 4, 5, 8)
    for query, key, message in (
        (q, other, "key: expected leading axes that broadcast with (2,)"),
        (q[0, 0, 0], other, "query: expected 2 to "),
        (q, other[0, 0, 0], "key: expected 2 to "),
    ):
        with pytest.raises(ValueError) as caught:
            ft.scaled_dot_product_attention(query, key, key, is_causal=is_causal)
        assert str(caught.value).startswith(message)


SMALL = {
    "k": (2, 4, 6, 8), "v": (2, 4, 6, 8), "attn_mask": (6, 6), "alibi_slopes": (4,), "sinks": (4,),
    "q_offset": (2,), "kv_lengths": (2,), "kv_starts": (2,), "block_table": (2, 1),
    "k_scale": (4,), "v_scale": (4,),
}  # fmt: skip


@pytest.mark.parametrize("name", SMALL)
def test_one_tensor_on_meta_is_refused(q, name):
    """The dispatcher takes the fake kernel then, which fills nothing."""
    options = {"k": q, "v": q} | {name: torch.ones(SMALL[name], device="meta")}
    with pytest.raises(TypeError, match=f"^{name}: expected a .* CPU.* on meta"):
        ft.attention(q, **options)


def test_pack_on_meta_is_refused(randn):
    q = randn(5, 2, 4).requires_grad_()
    with pytest.raises(TypeError, match=r"^cu_seqlens_q: expected a .* CPU.* on meta"):
        ft.attention_varlen(q, q, q, torch.empty(3, dtype=torch.int64, device="meta"))


def test_every_tensor_on_meta():
    """What is given as numbers becomes a tensor on the CPU, and does no harm."""
    q = torch.empty(2, 4, 6, 8, device="meta", requires_grad=True)
    out = ft.attention(q, q, q, kv_lengths=[6, 4], q_offset=1)
    assert out.device.type == "meta" and out.shape == q.shape


def test_nested_tensors_are_refused(randn):
    """Jagged ones go to the operator, of which torch knows no nested kernel; their parts do."""
    rows = [randn(4, size, 8) for size in (3, 5)]
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    advice = r"expected a dense tensor, got a nested one \(attention_varlen takes its values"
    for call, name in (
        (lambda: ft.attention(jagged, jagged, jagged), "q"),
        (lambda: ft.attention(randn(2, 4, 5, 8), jagged, jagged), "k"),
        (lambda: ft.scaled_dot_product_attention(jagged, jagged, jagged), "query"),
    ):
        with pytest.raises(TypeError, match=f"^{name}: {advice}"):
            call()
    packed = [row.transpose(0, 1) for row in rows]
    jagged = torch.nested.nested_tensor(packed, layout=torch.jagged)
    values = jagged.values()
    out = ft.attention_varlen(values, values, values, jagged.offsets())
    expected = [ft.attention(row, row, row, layout="bshd") for row in packed]
    torch.testing.assert_close(out, torch.cat(expected))


# ---- functions on arrays, of tensors ----


@pytest.mark.parametrize("inference", ["no_grad", "inference_mode"])
def test_parameters_are_read_where_nobody_takes_gradients(rng, inference):
    arrays = rng.standard_normal((3, 2, 5, 8), dtype=np.float32)
    q, k, v = map(torch.from_numpy, arrays)
    q, k = torch.nn.Parameter(q), k.requires_grad_()
    cache = fastattn.KVCache(1, 2, 8, capacity=5)
    expected = fastattn.attention(*arrays)
    with getattr(torch, inference)():
        out = torch.nn.Parameter(torch.empty(2, 5, 8))
        assert fastattn.attention(q, k, v, out=out) is out
        cache.append(k[None], v[None])
        np.testing.assert_array_equal(cache.attend(q[None])[0], expected)
    np.testing.assert_array_equal(out.detach().numpy(), expected)
    for name in "qk":
        given = dict(zip("qkv", arrays, strict=True)) | {name: {"q": q, "k": k}[name]}
        with pytest.raises(TypeError, match=rf"^{name}: expected a tensor that needs no gradient"):
            fastattn.attention(**given)


def test_dual_parameter_refused_without_gradients():
    q, forward_ad = torch.ones(2, 2, requires_grad=True), torch.autograd.forward_ad
    with forward_ad.dual_level(), torch.no_grad():
        dual = forward_ad.make_dual(torch.ones(2, 2), torch.ones(2, 2)).requires_grad_()
        with pytest.raises(TypeError, match=r"^k: expected a tensor without a tangent, got one"):
            fastattn.attention(q, dual, q)
