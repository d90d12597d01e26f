# SPDX-License-Identifier: MIT
"""fastattn.flash_attn: flash-attn's functions on NumPy arrays and tensors, against the oracle."""

import importlib.machinery
import importlib.util
import inspect
import itertools
import sys
import types

import numpy as np
import pytest
from cases import normal

import fastattn.flash_attn as fa
from fastattn import reference

LIBRARIES = ["numpy", "torch"]


@pytest.fixture(params=LIBRARIES)
def library(request):
    """Turns arrays into what a library calls them, and its results back, of the right type."""
    return Library(request.param)


class Library:
    def __init__(self, name):
        self.torch = pytest.importorskip("torch") if name == "torch" else None
        self.type = self.torch.Tensor if self.torch else np.ndarray

    def __call__(self, value):
        if isinstance(value, np.ndarray) and self.torch:
            return self.torch.from_numpy(value)
        return value

    def run(self, function, *arguments, **options):
        options = {name: self(value) for name, value in options.items()}
        result = function(*(self(each) for each in arguments), **options)
        several = isinstance(result, tuple)
        results = result if several else (result,)
        assert all(type(each) is self.type for each in results)
        results = tuple(each.numpy() if self.torch else each for each in results)
        return results if several else results[0]


def close(result, expected, dtype=np.float32):
    """Within 16 eps of the largest value: 2e-6 in float32."""
    assert result.dtype == dtype
    allowed = 16 * np.finfo(dtype).eps * max(1, np.abs(expected).max())
    np.testing.assert_allclose(result, expected, rtol=0, atol=allowed)


def truth(q, k, v, **options):
    return reference.attention(q, k, v, layout="bshd", return_lse=True, **options)


# ---- dense ---------------------------------------------------------------------------------------

OPTIONS = {
    "plain": ({}, {}),
    "causal": ({"causal": True}, {"causal": True}),
    "window": ({"window_size": (5, 2)}, {"window_size": (5, 2)}),
    "left window": ({"window_size": (5, -1)}, {"window_size": (5, None)}),
    "window in a list": ({"window_size": [5, None]}, {"window_size": (5, None)}),
    "any negative": ({"window_size": (-(2**80), 0)}, {"window_size": (-1, 0)}),
    "causal window": ({"causal": True, "window_size": (5, 9)},
                      {"causal": True, "window_size": (5, 9)}),
    "scale, softcap": ({"softmax_scale": 0.4, "softcap": 3.0}, {"scale": 0.4, "softcap": 3.0}),
    "softcap below 0": ({"softcap": -1.0}, {}),
    "alibi": ({"alibi_slopes": np.array([0.1, 0.2, 0.3, 0.4], np.float32)},
              {"alibi_slopes": np.array([0.1, 0.2, 0.3, 0.4], np.float32)}),
    "alibi of each": ({"alibi_slopes": np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 4)},
                      {"alibi_slopes": np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 4)}),
    "deterministic": ({"deterministic": True, "dropout_p": 0.0}, {}),
}  # fmt: skip


@pytest.mark.parametrize("queries, keys", [(17, 33), (33, 17), (1, 33)])
@pytest.mark.parametrize("options, ours", OPTIONS.values(), ids=OPTIONS)
def test_func_matches_the_oracle(library, rng, options, ours, queries, keys):
    q, k, v = (
        normal(rng, 2, n, h, d) for n, h, d in ((queries, 4, 16), (keys, 2, 16), (keys, 2, 8))
    )
    out, lse, pattern = library.run(fa.flash_attn_func, q, k, v, return_attn_probs=True, **options)
    expected, expected_lse = truth(q, k, v, **ours)
    close(out, expected)
    seen = np.isfinite(expected_lse)
    assert lse.shape == (2, 4, queries) and pattern.shape == (0,)
    close(lse[seen], expected_lse[seen])
    assert (lse[~seen] == -np.inf).all()
    only = library.run(fa.flash_attn_func, q, k, v, **options)
    np.testing.assert_array_equal(only, out)


@pytest.mark.parametrize("name", ["float16", "bfloat16"])
def test_16_bit(rng, name):
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(normal(rng, 2, 9, 4, 16)).to(getattr(torch, name))
    out = fa.flash_attn_func(q, q, q, causal=True)
    expected, _ = truth(*[q.double().numpy()] * 3, causal=True)
    assert out.dtype == q.dtype
    np.testing.assert_allclose(
        out.double().numpy(), expected, rtol=0, atol=4 * torch.finfo(q.dtype).eps
    )


# ---- packed sequences ----------------------------------------------------------------------------

CU_Q, CU_K = np.array([0, 4, 4, 9], np.int32), np.array([0, 5, 6, 12], np.int32)


def one_by_one(q, k, v, **options):
    """The oracle on each sequence."""
    outs, lses = [], []
    pairs = zip(itertools.pairwise(CU_Q), itertools.pairwise(CU_K), strict=True)
    for (a, b), (c, d) in pairs:
        out, lse = truth(q[None, a:b], k[None, c:d], v[None, c:d], **options)
        outs.append(out[0])
        lses.append(lse[0])
    return np.concatenate(outs), np.concatenate(lses, 1)


@pytest.mark.parametrize("causal", [False, True])
def test_varlen(library, rng, causal):
    q, k, v = normal(rng, 9, 4, 16), normal(rng, 12, 2, 16), normal(rng, 12, 2, 8)
    options = {"causal": causal, "softcap": 4.0}
    out, lse, pattern = library.run(
        fa.flash_attn_varlen_func, q, k, v, CU_Q, CU_K, 5, 6, return_attn_probs=True, **options
    )
    expected, expected_lse = one_by_one(q, k, v, **options)
    close(out, expected)
    assert lse.shape == (4, 9) and pattern.shape == (0,)
    np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=4e-6)


# The shape of what is packed, and where its sequences begin.
PACKED = {
    "qkvpacked": ((2, 9, 3, 4, 16), []),
    "kvpacked": ((2, 9, 2, 2, 16), []),
    "varlen_qkvpacked": ((12, 3, 4, 16), [CU_K]),
    "varlen_kvpacked": ((12, 2, 2, 16), [CU_Q, CU_K]),
}


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("name", PACKED)
def test_packed_arguments(library, rng, name, dtype):
    """With every option they give what their parts give; dropout is refused as well."""
    shape, cuts = PACKED[name]
    packed = normal(rng, *shape, dtype=dtype)
    parts = [packed[..., part, :, :] for part in range(shape[-3])]
    q = [] if len(parts) == 3 else [normal(rng, *((9,) if cuts else (2, 5)), 4, 16, dtype=dtype)]
    options = {
        "softmax_scale": 0.3, "causal": True, "window_size": (4, 1), "softcap": 2.0,
        "alibi_slopes": np.array([0.1, 0.2, 0.3, 0.4], np.float32), "return_attn_probs": True,
    }  # fmt: skip
    unpacked = fa.flash_attn_varlen_func if cuts else fa.flash_attn_func
    expected = library.run(unpacked, *q, *parts, *cuts[:1], *cuts[-1:], **options)
    function = getattr(fa, f"flash_attn_{name}_func")
    ours = library.run(function, *q, packed, *cuts, **options)
    for mine, theirs in zip(ours, expected, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    assert ours[2].dtype == dtype
    with pytest.raises(NotImplementedError, match=r"^dropout_p: "):
        library.run(function, *q, packed, *cuts, dropout_p=0.1)


def test_varlen_pages(library, rng):
    q, k, v = normal(rng, 9, 4, 16), normal(rng, 12, 2, 16), normal(rng, 12, 2, 8)
    table = np.array([[3, 1], [5, 0], [4, 2]], np.int32)
    pages_k, pages_v = normal(rng, 6, 3, 2, 16), normal(rng, 6, 3, 2, 8)
    for b, (begin, end) in enumerate(itertools.pairwise(CU_K)):
        for j in range(end - begin):
            pages_k[table[b, j // 3], j % 3] = k[begin + j]
            pages_v[table[b, j // 3], j % 3] = v[begin + j]
    ours = library.run(
        fa.flash_attn_varlen_func, q, pages_k, pages_v, CU_Q, CU_K, 5, 6, causal=True,
        block_table=table,
    )  # fmt: skip
    close(ours, one_by_one(q, k, v, causal=True)[0])
    again = library.run(
        fa.flash_attn_varlen_func, q, pages_k, pages_v, CU_Q.tolist(), CU_K.tolist(), causal=True,
        block_table=table,
    )  # fmt: skip
    np.testing.assert_array_equal(again, ours)


# ---- interface -----------------------------------------------------------------------------------

SCORES = "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0"
OPTIONAL = (
    f"dropout_p=0.0, {SCORES}, alibi_slopes=None, deterministic=False, return_attn_probs=False"
)
CUTS = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q=None, max_seqlen_k=None"
SIGNATURES = {
    "flash_attn_func": f"q, k, v, {OPTIONAL}",
    "flash_attn_qkvpacked_func": f"qkv, {OPTIONAL}",
    "flash_attn_kvpacked_func": f"q, kv, {OPTIONAL}",
    "flash_attn_varlen_func": f"q, k, v, {CUTS}, {OPTIONAL}, block_table=None",
    "flash_attn_varlen_qkvpacked_func": f"qkv, cu_seqlens, max_seqlen=None, {OPTIONAL}",
    "flash_attn_varlen_kvpacked_func": f"q, kv, {CUTS}, {OPTIONAL}",
    "flash_attn_with_kvcache": "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, "
    "rotary_sin=None, cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, "
    f"block_table=None, {SCORES}, rotary_interleaved=True, alibi_slopes=None, num_splits=0, "
    "return_softmax_lse=False",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    """Names, order and defaults are those of flash-attn 2.8, where max_seqlen has no default."""
    assert str(inspect.signature(getattr(fa, name))) == f"({SIGNATURES[name]})"


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda q: fa.flash_attn_func(q, q, q, 0.1), NotImplementedError,
         "dropout_p: expected 0.0, got 0.1"),
        (lambda q: fa.flash_attn_func(q, q, q, window_size=3), ValueError,
         "window_size: expected a pair (left, right), got 3"),
        (lambda q: fa.flash_attn_func(q, q[:, :, :3], q), ValueError,
         "k: expected a number of heads that divides q's 4, got shape (2, 9, 3, 16)"),
        (lambda q: fa.flash_attn_qkvpacked_func(q), ValueError,
         "qkv: expected shape (..., 3, heads, depth), got (2, 9, 4, 16)"),
        (lambda q: fa.flash_attn_qkvpacked_func(q[0, 0]), ValueError,
         "qkv: expected shape (..., 3, heads, depth), got (4, 16)"),
        (lambda q: fa.flash_attn_kvpacked_func(q, q), ValueError,
         "kv: expected shape (..., 2, heads, depth), got (2, 9, 4, 16)"),
        (lambda q: fa.flash_attn_qkvpacked_func([q]), TypeError,
         "qkv: expected a numpy.ndarray, got list"),
        (lambda q: fa.flash_attn_func(q, q, q, window_size=("a", 1)), TypeError,
         "window_size: expected an integer, got str"),
        (lambda q: fa.flash_attn_func(q, q, q, softcap=None), TypeError,
         "softcap: expected a number, got NoneType"),
        (lambda q: fa.flash_attn_func(q, q, q, softmax_scale="1"), TypeError,
         "softmax_scale: expected a number, got str"),
        (lambda q: fa.flash_attn_func(q, q, q, return_attn_probs=1), TypeError,
         "return_attn_probs: expected True or False, got int"),
        (lambda q: fa.flash_attn_varlen_func(q[0], q[0], q[0], [0, 9], [0, 9], return_attn_probs=1),
         TypeError, "return_attn_probs: expected True or False, got int"),
        (lambda q: fa.flash_attn_varlen_func(q[0], q, q, [0, 9], [0, 5, 9],
                                             block_table=np.array([[0, 1]])), ValueError,
         "cu_seqlens_k: expected shape (2,) like cu_seqlens_q, got shape (3,)"),
    ],
    ids=["dropout", "window", "heads", "qkv", "two axes", "kv", "list", "word", "softcap", "scale",
         "probs", "probs of packed", "cuts"],
)  # fmt: skip
def test_refusals(library, call, error, message):
    with pytest.raises(error) as caught:
        call(library(np.zeros((2, 9, 4, 16), np.float32)))
    assert str(caught.value).startswith(message)


def depth(n):
    return lambda packed: packed[..., :n]


@pytest.mark.parametrize(
    "name, change, error, message",
    [
        ("qkvpacked", depth(0), ValueError,
         "qkv[..., 0, :, :]: expected at least 1 head and depth 1, got shape (2, 9, 4, 0)"),
        ("varlen_qkvpacked", lambda packed: packed[None], ValueError,
         "qkv[..., 0, :, :]: expected 3 axes (tokens, heads, depth), got shape (1, 12, 4, 16)"),
        ("varlen_qkvpacked", lambda packed: packed[:11], ValueError,
         "cu_seqlens: expected 11 at last, the rows of qkv[..., 0, :, :], got 12"),
        ("kvpacked", depth(8), ValueError,
         "kv[..., 0, :, :]: expected depth 16 like q, got shape (2, 9, 2, 8)"),
        ("kvpacked", lambda packed: packed > 0, TypeError,
         "kv[..., 0, :, :]: expected dtype float32, float16, bfloat16, int8, float8_e4m3fn or flo"),
        ("varlen_kvpacked", lambda packed: packed[:11], ValueError,
         "cu_seqlens_k: expected 11 at last, the rows of kv[..., 0, :, :], got 12"),
    ],
    ids=["depth", "axes", "cuts", "another depth", "bool", "cuts of keys"],
)  # fmt: skip
def test_refusals_name_what_is_packed(library, rng, name, change, error, message):
    shape, cuts = PACKED[name]
    q = [] if shape[-3] == 3 else [library(normal(rng, *((9,) if cuts else (2, 5)), 4, 16))]
    packed = change(library(normal(rng, *shape)))
    with pytest.raises(error) as caught:
        getattr(fa, f"flash_attn_{name}_func")(*q, packed, *cuts)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("dropout", [False, None, np.zeros(2)], ids=repr)
def test_dropout_that_is_no_number(library, rng, dropout):
    q = library(normal(rng, 1, 2, 4, 8))
    with pytest.raises(TypeError, match=r"^dropout_p: expected a number, got"):
        fa.flash_attn_func(q, q, q, dropout)


def test_backward_raises(rng):
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(normal(rng, 2, 9, 4, 16)).requires_grad_()
    with pytest.raises(NotImplementedError, match=r"there is no backward yet"):
        fa.flash_attn_func(q, q, q).sum().backward()


def test_compiled(rng):
    torch = pytest.importorskip("torch")
    q = torch.from_numpy(normal(rng, 2, 9, 4, 16))
    compiled = torch.compile(fa.flash_attn_func, backend="eager", fullgraph=True)
    assert torch.equal(compiled(q, q, q, causal=True), fa.flash_attn_func(q, q, q, causal=True))
    for softcap in (1.5, 2.5, 3.5):  # from the second one on, dynamo counts with a symbol
        options = {"softmax_scale": softcap, "softcap": softcap, "window_size": (int(softcap), -2)}
        ours = compiled(q, q, q, **options)
        assert torch.equal(ours, fa.flash_attn_func(q, q, q, **options))
    qkv = torch.stack([q, q, q], 2)
    compiled = torch.compile(fa.flash_attn_qkvpacked_func, backend="eager", fullgraph=True)
    assert torch.equal(compiled(qkv), fa.flash_attn_qkvpacked_func(qkv))


# ---- import flash_attn ---------------------------------------------------------------------------


@pytest.fixture
def installed():
    pytest.importorskip("torch")
    if importlib.util.find_spec("flash_attn") is not None:
        pytest.skip("flash-attn itself is installed")
    fa.install()
    yield
    fa.uninstall()
    assert importlib.util.find_spec("flash_attn") is None


def test_install(installed):
    import flash_attn
    from flash_attn import flash_attn_func
    from flash_attn.bert_padding import index_first_axis, pad_input, unpad_input
    from flash_attn.flash_attn_interface import flash_attn_varlen_func

    assert flash_attn is fa and flash_attn_func is fa.flash_attn_func
    assert flash_attn_varlen_func is fa.flash_attn_varlen_func
    assert callable(index_first_axis) and callable(pad_input) and callable(unpad_input)
    assert flash_attn.__version__.startswith("2.8")
    assert importlib.util.find_spec("flash_attn") is not None
    fa.install()  # once more does no harm


def test_install_beside_another(monkeypatch):
    pytest.importorskip("torch")
    other = type(sys)("flash_attn")
    other.__spec__ = importlib.machinery.ModuleSpec("flash_attn", None)
    for name in "flash_attn", "flash_attn.ops", "flash_attn_3":
        monkeypatch.setitem(sys.modules, name, other)
    with pytest.raises(ImportError, match=r"^flash_attn: expected no package of this name"):
        fa.install()
    assert sys.modules["flash_attn"] is other
    fa.install(replace=True)
    assert sys.modules["flash_attn"] is fa and sys.modules["flash_attn_3"] is other
    assert "flash_attn.ops" not in sys.modules
    fa.uninstall()
    assert "flash_attn" not in sys.modules


@pytest.mark.parametrize("unused", [False, True])
def test_bert_padding(rng, unused):
    torch = pytest.importorskip("torch")
    from fastattn.flash_attn.bert_padding import pad_input, unpad_input

    x = torch.from_numpy(normal(rng, 3, 5, 2, 4))
    mask = torch.tensor([[1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [1, 1, 1, 1, 1]])
    more = torch.tensor([[0, 0, 1, 0, 0]] + [[0] * 5] * 2) if unused else None
    tokens, indices, cu, longest, used = unpad_input(x, mask, more)
    packed = (mask if more is None else mask + more).bool()
    assert torch.equal(tokens, x[packed]) and torch.equal(indices, packed.flatten().nonzero()[:, 0])
    assert cu.tolist() == [0, 2 + unused, 2 + unused, 7 + unused] and cu.dtype == torch.int32
    assert longest == 5 and used.tolist() == [2, 0, 5]
    assert torch.equal(pad_input(tokens, indices, 3, 5), x * packed[..., None, None])
    assert unpad_input(x[:0], mask[:0])[3] == 0


def test_uninstall_what_was_not_installed(monkeypatch):
    """Another flash_attn stays; modules that nobody imported are none of ours."""
    other = types.ModuleType("flash_attn")
    monkeypatch.setitem(sys.modules, "flash_attn", other)
    monkeypatch.delitem(sys.modules, "fastattn.flash_attn.bert_padding", raising=False)
    fa.uninstall()
    assert sys.modules["flash_attn"] is other
