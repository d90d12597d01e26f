# SPDX-License-Identifier: MIT
"""flash_attn_with_kvcache: what is appended, where, rotated by what, and what is attended to."""

import itertools

import numpy as np
import pytest
from cases import normal
from test_flash_attn import Library, close, truth

from fastattn.flash_attn import flash_attn_with_kvcache

HEADS, DEPTH = 2, 16


@pytest.fixture(params=["numpy", "torch"])
def library(request):
    return Library(request.param)


@pytest.fixture
def dtype():
    return np.float32


@pytest.fixture
def problem(rng, dtype):
    """Three sequences of 5, 0 and 9 keys in a cache of 12; the rest of it must not be looked at."""
    cache = {name: normal(rng, 3, 12, HEADS, DEPTH, dtype=dtype) for name in ("k_cache", "v_cache")}
    lengths = np.array([5, 0, 9], np.int32)
    for tensor, (b, length) in itertools.product(cache.values(), enumerate(lengths)):
        tensor[b, length:] = np.nan
    q = normal(rng, 3, 2, 4, DEPTH, dtype=dtype)
    return {"q": q, **cache, "cache_seqlens": lengths}


def new(rng, count=2, dtype=np.float32):
    return {name: normal(rng, 3, count, HEADS, DEPTH, dtype=dtype) for name in "kv"}


def expected_caches(problem, added):
    """The caches in float64 with `added` appended, the slow way."""
    k, v = (problem[name].astype(np.float64) for name in ("k_cache", "v_cache"))
    for b, length in enumerate(problem["cache_seqlens"]):
        k[b, length : length + added["k"].shape[1]] = added["k"][b]
        v[b, length : length + added["v"].shape[1]] = added["v"][b]
    return k, v


def rotated(x, cos, sin, positions, interleaved):
    """x (B, T, H, D) rotated as complex numbers, one token after the other."""
    x = x.astype(np.float64)
    half = cos.shape[1]
    for b, t in np.ndindex(x.shape[:2]):
        angle = cos[positions[b, t]] + 1j * sin[positions[b, t]]
        part = x[b, t, :, : 2 * half]
        pairs = (
            part.reshape(-1, half, 2) if interleaved else part.reshape(-1, 2, half).swapaxes(1, 2)
        )
        turned = (pairs[..., 0] + 1j * pairs[..., 1]) * angle
        pairs = np.stack([turned.real, turned.imag], -1)
        x[b, t, :, : 2 * half] = (pairs if interleaved else pairs.swapaxes(1, 2)).reshape(
            part.shape
        )
    return x


@pytest.mark.parametrize("causal", [False, True])
def test_lengths(library, problem, causal):
    out, lse = library.run(
        flash_attn_with_kvcache, **problem, causal=causal, return_softmax_lse=True
    )
    expected, expected_lse = truth(
        problem["q"], problem["k_cache"], problem["v_cache"], kv_lengths=problem["cache_seqlens"],
        causal=causal,
    )  # fmt: skip
    close(out, expected)
    assert lse.shape == (3, 4, 2)
    np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=4e-6)
    assert not out[1].any() and (lse[1] == -np.inf).all()


def test_whole_cache(library, rng):
    q, k = normal(rng, 2, 3, 4, DEPTH), normal(rng, 2, 7, HEADS, DEPTH)
    close(
        library.run(flash_attn_with_kvcache, q, k, k, causal=True), truth(q, k, k, causal=True)[0]
    )


def test_one_length(library, problem):
    problem["cache_seqlens"] = 5
    for name in "k_cache", "v_cache":
        problem[name] = np.nan_to_num(problem[name])
    expected, _ = truth(problem["q"], problem["k_cache"], problem["v_cache"], kv_lengths=5)
    close(library.run(flash_attn_with_kvcache, **problem), expected)


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("options", [{"causal": True}, {"window_size": (3, 0)}, {}], ids=str)
def test_append_writes_into_the_caches_given(library, problem, rng, count, options):
    added = new(rng, count)
    k, v = expected_caches(problem, added)
    out = library.run(flash_attn_with_kvcache, **problem, **added, **options)
    np.testing.assert_array_equal(problem["k_cache"], k)
    np.testing.assert_array_equal(problem["v_cache"], v)
    expected, _ = truth(problem["q"], k, v, kv_lengths=problem["cache_seqlens"] + count, **options)
    close(out, expected)


def test_left_padding(library, problem, rng):
    added, start = new(rng), np.array([2, 0, 7], np.int32)
    k, v = expected_caches(problem, added)
    k[0, :2] = problem["k_cache"][0, :2] = np.nan  # never read
    options = {"kv_lengths": problem["cache_seqlens"] + 2, "kv_starts": start, "causal": True}
    expected, _ = truth(problem["q"], k, v, **options)
    out = library.run(flash_attn_with_kvcache, **problem, **added, cache_leftpad=start, causal=True)
    close(out, expected)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize(
    "options, local",
    [({"causal": True}, True), ({"window_size": (6, -1)}, True), ({"window_size": (-1, 3)}, True),
     ({"window_size": [-1, -1]}, False), ({}, False)],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize(
    "features, dtype, within",  # float16 is rotated in float32, then rounded
    [(8, np.float32, 1e-6), (DEPTH, np.float32, 1e-6), (8, np.float64, 1e-14),
     (8, np.float16, 1e-6)],
)  # fmt: skip
def test_rotary(library, problem, rng, interleaved, options, local, features, dtype, within):
    """Part of the features, or all; a query without an order of its own stands where k begins."""
    added = new(rng, dtype=dtype)
    angles = normal(rng, 12, features // 2, dtype=dtype)
    cos, sin = np.cos(angles), np.sin(angles)
    places = problem["cache_seqlens"][:, None] + np.arange(2)
    of_query = places if local else np.repeat(places[:, :1], 2, 1)
    query = rotated(problem["q"], cos, sin, of_query, interleaved)
    turned = {"k": rotated(added["k"], cos, sin, places, interleaved), "v": added["v"]}
    k, v = expected_caches(problem, turned)
    out = library.run(
        flash_attn_with_kvcache, **problem, **added, rotary_cos=cos, rotary_sin=sin,
        rotary_interleaved=interleaved, **options,
    )  # fmt: skip
    rounding = np.finfo(dtype).eps / 2
    np.testing.assert_allclose(problem["k_cache"], k, rtol=rounding, atol=within)
    expected, _ = truth(query, k, v, kv_lengths=problem["cache_seqlens"] + 2, **options)
    close(out, expected, dtype)


@pytest.mark.parametrize("count", [0, 2])
def test_rotary_leaves_its_arguments(library, problem, rng, count):
    added, table = new(rng, count), np.ones((12, 4), np.float32)
    before = added["k"].copy(), problem["q"].copy()
    library.run(flash_attn_with_kvcache, **problem, **added, rotary_cos=table, rotary_sin=table)
    np.testing.assert_array_equal(added["k"], before[0])
    np.testing.assert_array_equal(problem["q"], before[1])


def test_larger_cache(library, problem, rng):
    """Without indices the first rows are meant."""
    small = {name: problem[name] for name in ("k_cache", "v_cache")}
    for name, tensor in small.items():
        problem[name] = np.concatenate([tensor, normal(rng, 2, *tensor.shape[1:])])
    added = new(rng)
    out = library.run(flash_attn_with_kvcache, **problem, **added)
    np.testing.assert_array_equal(
        out, library.run(flash_attn_with_kvcache, **problem | small, **added)
    )
    np.testing.assert_array_equal(problem["k_cache"][:3], small["k_cache"])


def test_batch_index(library, problem, rng):
    """Rows of a larger cache in another order, read and written where they are."""
    rows, added = np.array([4, 0, 2], np.int32), new(rng)
    k, v = expected_caches(problem, added)
    given = {name: normal(rng, 5, 12, HEADS, DEPTH) for name in ("k_cache", "v_cache")}
    for name, tensor in given.items():
        tensor[rows] = problem[name]
    out = library.run(
        flash_attn_with_kvcache, **problem | given, **added, cache_batch_idx=rows, causal=True
    )
    np.testing.assert_array_equal(given["k_cache"][rows], k)
    np.testing.assert_array_equal(given["v_cache"][rows], v)
    lengths = problem["cache_seqlens"] + 2
    close(out, truth(problem["q"], k, v, kv_lengths=lengths, causal=True)[0])


@pytest.mark.parametrize(
    "page, integers, count",
    [(1, np.int32, 3), (3, np.int64, 3), (4, np.uint8, 3), (12, np.int32, 3), (4, np.int32, 0)],
)
def test_append_writes_into_the_pages_given(library, problem, rng, page, integers, count):
    blocks = 12 // page
    table = rng.permutation(3 * blocks + 2)[: 3 * blocks].reshape(3, blocks).astype(integers)
    added = new(rng, count)
    k, v = expected_caches(problem, added)
    pages = {
        name: normal(rng, 3 * blocks + 2, page, HEADS, DEPTH) for name in ("k_cache", "v_cache")
    }
    for name, tensor in pages.items():
        tensor[table] = problem[name].reshape(3, blocks, page, HEADS, DEPTH)
    out = library.run(
        flash_attn_with_kvcache, **problem | pages, **added, block_table=table, causal=True
    )
    np.testing.assert_array_equal(pages["k_cache"][table].reshape(k.shape), k)
    np.testing.assert_array_equal(pages["v_cache"][table].reshape(v.shape), v)
    lengths = problem["cache_seqlens"] + count
    close(out, truth(problem["q"], k, v, kv_lengths=lengths, causal=True)[0])


def test_steps_of_a_decoder(library, rng):
    """One token at a time gives what all at once gives."""
    q, k, v = (normal(rng, 2, 9, heads, DEPTH) for heads in (4, HEADS, HEADS))
    caches = [library(np.full((2, 9, HEADS, DEPTH), np.nan, np.float32)) for _ in range(2)]
    outs = [
        library.run(
            flash_attn_with_kvcache, q[:, t : t + 1], *caches, k[:, t : t + 1], v[:, t : t + 1],
            cache_seqlens=t, causal=True,
        )
        for t in range(9)
    ]  # fmt: skip
    close(np.concatenate(outs, 1), truth(q, k, v, causal=True)[0])


# ---- refusals ------------------------------------------------------------------------------------

READ_ONLY = np.zeros((3, 12, HEADS, DEPTH), np.float32)
READ_ONLY.flags.writeable = False
TABLE = np.ones((12, 4), np.float32)


@pytest.mark.parametrize(
    "change, error, message",
    [
        ({"v": None}, ValueError, "k, v: expected both or neither, got one of them"),
        ({"k": None, "v": None, "rotary_cos": TABLE}, ValueError,
         "rotary_cos: expected None without k, got a table"),
        ({"k": None, "v": None, "rotary_sin": TABLE}, ValueError,
         "rotary_sin: expected None without k, got a table"),
        ({"rotary_cos": TABLE}, ValueError, "rotary_cos, rotary_sin: expected both or neither"),
        ({"rotary_sin": TABLE}, ValueError, "rotary_cos, rotary_sin: expected both or neither"),
        ({"rotary_cos": TABLE[None], "rotary_sin": TABLE[None]}, ValueError,
         "rotary_sin: expected shape (positions, R / 2) like rotary_cos, got (1, 12, 4) and (1, "),
        ({"rotary_cos": TABLE, "rotary_sin": TABLE[:5]}, ValueError,
         "rotary_sin: expected shape (positions, R / 2) like rotary_cos, got (12, 4) and (5, 4)"),
        ({"rotary_cos": TABLE[:10], "rotary_sin": TABLE[:10]}, ValueError,
         "rotary_cos: expected at least 11 positions, got shape (10, 4)"),
        ({"rotary_cos": np.ones((12, 9)), "rotary_sin": np.ones((12, 9))}, ValueError,
         "rotary_cos: expected at most 8 columns for k, got shape (12, 9)"),
        ({"cache_seqlens": None}, ValueError, "cache_seqlens: expected lengths with k, got None"),
        ({"cache_seqlens": np.array([5, 0, 11])}, ValueError,
         "k_cache: expected room for 13 keys, got 12 in shape (3, 12, 2, 16)"),
        ({"cache_seqlens": np.array([5, 0])}, ValueError, "cache_seqlens: expected an integer or"),
        ({"cache_seqlens": 13}, ValueError, "cache_seqlens: expected values from 0 to 12, got 13"),
        ({"k_cache": READ_ONLY}, ValueError,
         "k_cache: expected a writable array, got a read-only one"),
        ({"v_cache": READ_ONLY}, ValueError,
         "v_cache: expected a writable array, got a read-only one"),
        ({"k_cache": READ_ONLY[:2], "v_cache": READ_ONLY[:2]}, ValueError,
         "k_cache: expected at least 3 rows, got 2"),
        ({"v_cache": READ_ONLY[:, :9]}, ValueError,
         "v_cache: expected shape (3, 12, 2, 'Dv') like k_cache, got (3, 9, 2, 16)"),
        ({"v_cache": READ_ONLY[:, :, :1]}, ValueError,
         "v_cache: expected shape (3, 12, 2, 'Dv') like k_cache, got (3, 12, 1, 16)"),
        ({"k": None, "v": None, "v_cache": READ_ONLY.astype(np.float64)}, TypeError,
         "v_cache: expected dtype float32 like k_cache, got float64"),
        ({"k_cache": READ_ONLY[0]}, ValueError, "k_cache: expected 4 axes, got shape (12, 2, 16)"),
        ({"k": READ_ONLY[:, :2].astype(np.float64)}, TypeError,
         "k: expected dtype float32 like k_cache, got float64"),
        ({"k": READ_ONLY[:, :2, :1]}, ValueError,
         "k: expected shape (3, T, 2, 16), got (3, 2, 1, 16)"),
        ({"k": np.ones((), np.float32)}, ValueError, "k: expected shape (3, T, 2, 16), got ()"),
        ({"v": READ_ONLY[:, :1]}, ValueError, "v: expected 2 keys like k, got shape (3, 1, 2, 16)"),
        ({"cache_batch_idx": np.array([0, 1, 3])}, ValueError,
         "cache_batch_idx: expected values from 0 to 2, got 3"),
        ({"cache_batch_idx": np.array([0, 1, 2]), "block_table": np.zeros((3, 1), int)}, ValueError,
         "cache_batch_idx: expected None with block_table, got both"),
        ({"block_table": np.zeros((2, 1), int)}, ValueError,
         "block_table: expected shape (3, blocks), got (2, 1)"),
        ({"block_table": np.arange(3)}, ValueError,
         "block_table: expected shape (3, blocks), got (3,)"),
        ({"block_table": np.zeros((3, 1))}, TypeError,
         "block_table: expected integers, got dtype float64"),
        ({"softmax_scale": np.nan}, ValueError, "softmax_scale: expected a finite number, got nan"),
        ({"return_softmax_lse": 1}, TypeError,
         "return_softmax_lse: expected True or False, got int"),
        ({"return_softmax_lse": None}, TypeError,
         "return_softmax_lse: expected True or False, got NoneType"),
        ({"rotary_interleaved": "x"}, TypeError,
         "rotary_interleaved: expected True or False, got str"),
        ({"q": np.zeros((3, 2, 3, DEPTH), np.float32)}, ValueError,
         "k_cache: expected a number of heads that divides q's 3"),
        ({"q": [1.0]}, TypeError, "q: expected a numpy.ndarray, got list"),
        ({"cache_leftpad": np.array([0, 0, 13])}, ValueError,
         "cache_leftpad: expected values from 0 to 12, got 13"),
        ({"softcap": None}, TypeError, "softcap: expected a number, got NoneType"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)  # fmt: skip
def test_refusals(problem, rng, change, error, message):
    """Nothing is written then."""
    arguments = problem | new(rng) | change
    before = {name: problem[name].copy() for name in ("k_cache", "v_cache")}
    with pytest.raises(error) as caught:
        flash_attn_with_kvcache(**arguments)
    assert str(caught.value).startswith(message)
    for name, tensor in before.items():
        np.testing.assert_array_equal(problem[name], tensor)


@pytest.mark.parametrize("start", [0, 12], ids=["read", "written"])
@pytest.mark.parametrize("entry", [-1, 3])
def test_page_out_of_range(problem, rng, entry, start):
    table = np.array([[0], [1], [entry]], np.int32)
    before = problem["k_cache"].copy()
    with pytest.raises(ValueError, match=r"^block_table: "):
        flash_attn_with_kvcache(**problem, **new(rng), block_table=table, cache_leftpad=start)
    np.testing.assert_array_equal(problem["k_cache"], before)


def test_tensor_that_requires_grad(problem):
    torch = pytest.importorskip("torch")
    problem = {name: torch.from_numpy(value) for name, value in problem.items()}
    problem["q"].requires_grad_()
    with pytest.raises(TypeError, match=r"q: expected a tensor that needs no gradient"):
        flash_attn_with_kvcache(**problem)
    with torch.no_grad():
        out = flash_attn_with_kvcache(**problem)
    problem["q"] = problem["q"].detach()
    assert torch.equal(out, flash_attn_with_kvcache(**problem))


def test_table_of_a_list(library, problem):
    table = np.array([[2], [0], [1]])
    expected = library.run(flash_attn_with_kvcache, **problem, block_table=table)
    given = library.run(flash_attn_with_kvcache, **problem, block_table=table.tolist())
    np.testing.assert_array_equal(given, expected)


TENSORS = ["q", "k_cache", "v_cache", "k", "v", "rotary_cos", "rotary_sin", "alibi_slopes"]


@pytest.mark.parametrize("name", TENSORS)
def test_tensor_with_a_tangent(problem, rng, name):
    """Never a result without one; tensors that have none are as ever."""
    torch = pytest.importorskip("torch")
    tables = {"rotary_cos": TABLE, "rotary_sin": TABLE, "alibi_slopes": TABLE[0]}
    before = problem["k_cache"].copy()
    given = {each: torch.from_numpy(value) for each, value in (problem | new(rng) | tables).items()}
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(given[name], given[name])
        with pytest.raises(NotImplementedError, match=r"there is no backward yet"):
            flash_attn_with_kvcache(**given | {name: dual})
        np.testing.assert_array_equal(problem["k_cache"], before)
        flash_attn_with_kvcache(**given)


def test_tangent_under_torch_compile(problem):
    """Dynamo traces tensors without their tangents: the call is left to Python then."""
    torch = pytest.importorskip("torch")
    given = {each: torch.from_numpy(value) for each, value in problem.items()}
    compiled = torch.compile(flash_attn_with_kvcache, backend="eager")
    expected = compiled(**given)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(given["q"], given["q"])
        with pytest.raises(NotImplementedError, match=r"there is no backward yet"):
            compiled(**given | {"q": dual})
        assert torch.equal(compiled(**given), expected)


@pytest.mark.parametrize("name", ["alibi_slopes", "k", "rotary_cos"])
def test_outside_of_graphs(problem, rng, name):
    """torch.compile does not try to trace it, which with slopes ended inside of Dynamo."""
    torch = pytest.importorskip("torch")
    options = {"alibi_slopes": {"alibi_slopes": TABLE[0]}, "k": new(rng),
               "rotary_cos": new(rng) | {"rotary_cos": TABLE, "rotary_sin": TABLE}}  # fmt: skip
    given = {each: torch.from_numpy(value) for each, value in (problem | options[name]).items()}
    ours = {each: value.clone() for each, value in given.items()}

    def doubled(arguments):
        return 2 * flash_attn_with_kvcache(**arguments)

    expected = doubled(given)
    np.testing.assert_array_equal(torch.compile(doubled, backend="eager")(ours), expected)
    np.testing.assert_array_equal(ours["k_cache"], given["k_cache"])
    torch._dynamo.reset()  # what it has compiled before would do
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"_untraced"):
        torch.compile(doubled, backend="eager", fullgraph=True)(ours)
