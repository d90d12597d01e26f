# SPDX-License-Identifier: MIT
"""The masks of fastattn.transformers: a few numbers that say what transformers' own table says."""

import copy
import itertools
import operator

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import masking_utils  # noqa: E402

import fastattn.transformers as ft  # noqa: E402
from fastattn.transformers._masks import CompactMask, Pattern, decode, pattern_of  # noqa: E402

CONFIG = transformers.LlamaConfig()
PATTERNS = {
    "causal": masking_utils.causal_mask_function,
    "bidirectional": masking_utils.bidirectional_mask_function,
    "window": masking_utils.sliding_window_causal_mask_function(4),
    "window without causality": masking_utils.sliding_window_overlay(4),
    "two-sided window": masking_utils.sliding_window_bidirectional_mask_function(3),
}
PACKED_IDS = torch.tensor([[0, 0, 0, 1, 1, 2], [0, 0, 1, 1, 1, 1]])
PACKED_POSITIONS = torch.tensor([[0, 1, 2, 0, 1, 0], [0, 1, 0, 1, 2, 3]])


def make(function, queries=6, keys=6, **options):
    return ft.attention_mask(2, queries, keys, mask_function=function, config=CONFIG, **options)


def table(function, queries=6, keys=6, **options):
    """What transformers' own sdpa gets."""
    return masking_utils.sdpa_mask(
        2, queries, keys, mask_function=function, allow_is_causal_skip=False, **options
    )


def same(mask, expected, queries, keys):
    """Both masks give the same attention; rows that see nothing are 0."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, queries, 8, generator=generator)
    key, value = (torch.randn(2, 2, keys, 8, generator=generator) for _ in range(2))
    out, weights = ft.attend(None, query, key, value, mask)
    assert out.shape == (2, queries, 4, 8) and weights is None
    torch.testing.assert_close(out, ft.attend(None, query, key, value, expected)[0])


# ---- patterns ------------------------------------------------------------------------------------


def sliding_window_overlay(sliding_window):
    """Another function than that of transformers, by its name."""
    return lambda batch, head, query, key: key > query + sliding_window


@pytest.mark.parametrize(
    "function, pattern",
    [
        (PATTERNS["causal"], Pattern(right=0)),
        (PATTERNS["bidirectional"], Pattern()),
        (PATTERNS["window"], Pattern(left=3, right=0)),
        (PATTERNS["two-sided window"], Pattern(left=3, right=3)),
        (masking_utils.and_masks(PATTERNS["window"], masking_utils.sliding_window_overlay(3)),
         Pattern(left=2, right=0)),
        (masking_utils.and_masks(PATTERNS["causal"], PATTERNS["two-sided window"]),
         Pattern(left=3, right=0)),
        (masking_utils.or_masks(PATTERNS["causal"], PATTERNS["window"]), None),
        (masking_utils.and_masks(PATTERNS["causal"], lambda b, h, q, k: q > k), None),
        (masking_utils.and_masks(lambda b, h, q, k: q > k, PATTERNS["causal"]), None),
        (masking_utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=int)), None),
        (masking_utils.sliding_window_causal_mask_function(0), None),  # which is not unbounded
        (lambda batch, head, query, key: key <= query, None),
        (sliding_window_overlay(4), None),
        (print, None),
    ],
    ids=["causal", "bidirectional", "window", "two-sided", "and", "and causal", "or", "mine last",
         "mine first", "chunked", "no keys", "mine", "mine by name", "builtin"],
)  # fmt: skip
def test_pattern(function, pattern):
    assert pattern_of(function) == pattern


def packed(inner):
    """As `masking_utils.create_causal_mask` puts it together."""
    within = masking_utils.remap_positions_for_packed_sequence(inner, PACKED_POSITIONS)
    return masking_utils.and_masks(within, masking_utils.packed_sequence_mask_function(PACKED_IDS))


@pytest.mark.parametrize("name", ["causal", "window"])
def test_packed_pattern(name):
    pattern, inner = pattern_of(packed(PATTERNS[name])), pattern_of(PATTERNS[name])
    assert (pattern.left, pattern.right) == (inner.left, inner.right)
    assert pattern.sequences is PACKED_IDS
    assert pattern_of(masking_utils.and_masks(*[packed(PATTERNS[name])] * 2)) is None


# ---- ranges --------------------------------------------------------------------------------------

TOKENS = {
    "all": [[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 1]],
    "left": [[1, 1, 1, 1, 1, 1], [0, 0, 1, 1, 1, 1]],
    "right": [[1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 1, 1]],
    "both": [[0, 1, 1, 1, 0, 0], [0, 0, 0, 0, 1, 0]],
    "row": [[0, 0, 0, 0, 0, 0], [1, 1, 1, 1, 1, 1]],
    "holes": [[1, 0, 1, 1, 1, 1], [1, 1, 1, 0, 1, 1]],
    "short": [[1, 1, 1, 1], [0, 1, 1, 1]],  # of a static cache: the rest is not there yet
    "short, all": [[1, 1, 1, 1], [1, 1, 1, 1]],
    "short, holes": [[1, 0, 1, 1], [1, 1, 0, 1]],
}


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("tokens", [None, *TOKENS])
def test_prefill(name, tokens):
    seen = None if tokens is None else torch.tensor(TOKENS[tokens], dtype=torch.bool)
    mask = make(PATTERNS[name], attention_mask=seen)
    same(mask, table(PATTERNS[name], attention_mask=seen), 6, 6)
    assert mask.shape == (2, 1, 6, 6) and mask.dtype == torch.bool and mask.ndim == 4
    if tokens in ("holes", "short, holes") and name != "bidirectional":
        assert not isinstance(mask, CompactMask)
    else:
        assert isinstance(mask, CompactMask) and not mask.touched


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("queries, offset, kv_offset", [(1, 5, 0), (3, 3, 0), (2, 7, 3), (1, 9, 4)])
@pytest.mark.parametrize("as_tensor", [False, True])
def test_behind_a_cache(name, queries, offset, kv_offset, as_tensor):
    """Queries at `offset`, keys from `kv_offset`, as caches of sliding layers have them.

    What is said of keys behind them does not count; those of which nothing is said are not seen.
    """
    keys = offset + queries - kv_offset
    seen = torch.ones(2, offset + queries + 2, dtype=torch.bool)
    seen[1, : kv_offset + 2] = False
    options = {"q_offset": torch.tensor(offset) if as_tensor else offset, "kv_offset": kv_offset}
    for given in None, seen, seen[:, :2]:
        mask = make(PATTERNS[name], queries, keys, attention_mask=given, **options)
        expected = table(PATTERNS[name], queries, keys, attention_mask=given, **options)
        same(mask, expected, queries, keys)
        assert not mask.touched


def test_ranges_say_no_more_than_needed():
    """A call without padding needs no lengths, so that it takes the shortest way."""
    for seen in None, torch.ones(2, 6, dtype=torch.bool):
        mask = make(PATTERNS["causal"], attention_mask=seen)
        assert decode(mask, 6, 6) == decode(mask, 6, 6, dense=True) == {"causal": True}
    assert decode(make(PATTERNS["bidirectional"], 2, 6), 2, 6) == {}
    assert decode(make(PATTERNS["causal"], 1, 6, q_offset=5), 1, 6) == {"causal": True}
    assert decode(make(PATTERNS["causal"], 2, 6), 2, 6) == {"causal": True, "q_offset": 0}
    oneself = make(masking_utils.sliding_window_causal_mask_function(1))
    assert decode(oneself, 6, 6) == {"causal": True, "window_size": (0, 0)}


def test_position_of_transformers_before_5_4():
    for first, queries in (0, 6), (4, 2):
        positions = torch.arange(first, first + queries)
        mask = ft.attention_mask(
            batch_size=2, cache_position=positions, kv_length=6, mask_function=PATTERNS["causal"],
        )  # fmt: skip
        same(mask, table(PATTERNS["causal"], queries, 6, q_offset=first), queries, 6)


# ---- tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PATTERNS)
def test_models_that_take_masks_apart_get_a_table(name):
    mask = make(PATTERNS[name], allow_is_causal_skip=False)
    assert not isinstance(mask, CompactMask) and torch.equal(mask, table(PATTERNS[name]))


@pytest.mark.parametrize("kind", ["or", "mine", "chunked"])
def test_unknown_patterns_get_a_table(kind):
    function = {
        "or": masking_utils.or_masks(PATTERNS["causal"], PATTERNS["two-sided window"]),
        "mine": lambda batch, head, query, key: (query + key) % 2 == 0,
        "chunked": masking_utils.chunked_causal_mask_function(4, torch.zeros(2, dtype=int)),
    }[kind]
    assert torch.equal(make(function), table(function))


# ---- what models do with their masks -------------------------------------------------------------

CHANGES = {
    "last": lambda mask: mask[:, :, -2:, :],
    "some": lambda mask: mask[:, :, 1:4, :],
    "none": lambda mask: mask[:, :, 4:2, :],
    "slice of a slice": lambda mask: mask[:, :, 1:, :][:, :, -3:-1, :],
    "flip of it": lambda mask: mask[:, :, 1:, :][:, :, -3:-1, :].flip(-1),
    "batch": lambda mask: mask[1:, :, 1:, :],
    "keys alone": lambda mask: mask[:, :, :, :4],
    "every other": lambda mask: mask[:, :, ::2, :],
    "one": lambda mask: mask[:, :, 3, :][:, :, None],
    "keys": lambda mask: mask[..., :4],
    "entry": lambda mask: mask[1][None],
    "listed": lambda mask: mask[:, torch.arange(1), 1:, :],
    "flip": lambda mask: mask.flip(-1),
    "logic": lambda mask: mask & torch.ones(6, 6, dtype=torch.bool).triu(-1),
    "bias": lambda mask: torch.eye(6)[None, None] + mask,
    "add": lambda mask: mask.add(torch.eye(6)),
    "add from the right": lambda mask: mask.__radd__(torch.eye(6)),
    "add in place": lambda mask: torch.eye(6).repeat(2, 1, 1, 1).add_(mask),
    "add by an operator": lambda mask: operator.iadd(torch.eye(6).repeat(2, 1, 1, 1), mask),
    "heads": lambda mask: mask.repeat(1, 4, 1, 1).reshape(2, 4, 6, 6),
    "cat": lambda mask: torch.cat([mask, mask], 1)[:, 1:],
    "copy": copy.deepcopy,
}


@pytest.mark.parametrize("name", [*PATTERNS, "packed", "holes"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed(name, change):
    """A model may do with our masks what it may do with the tables of sdpa."""
    function, options = PATTERNS.get(name, PATTERNS["bidirectional"]), {}
    if name == "packed":
        function = packed(PATTERNS["window"])
    else:
        kind = "holes" if name == "holes" else "left"
        options["attention_mask"] = torch.tensor(TOKENS[kind], dtype=torch.bool)
    mask, expected = make(function, **options), table(function, **options)
    if "bias" in change or "add" in change:
        expected = torch.where(expected, 0.0, torch.finfo(torch.float32).min)
    changed, expected = CHANGES[change](mask), CHANGES[change](expected)
    assert changed.shape == expected.shape
    same(changed, expected, *expected.shape[2:])
    same(mask, table(function, **options), 6, 6)


def test_queries_of_a_mask_need_no_table():
    tokens = torch.tensor(TOKENS["left"], dtype=torch.bool)
    for name, seen in itertools.product(PATTERNS, [None, tokens]):
        mask = make(PATTERNS[name], attention_mask=seen)
        rows = CHANGES["some"](mask)
        assert isinstance(rows, CompactMask) and not mask.touched and not rows.touched


def test_what_is_indexed_by_a_mask():
    numbers = torch.arange(72).reshape(2, 1, 6, 6)
    for name in PATTERNS:
        assert torch.equal(numbers[make(PATTERNS[name])], numbers[table(PATTERNS[name])])


def test_mask_for_other_keys():
    query, key = torch.zeros(2, 4, 6, 8), torch.zeros(2, 4, 7, 8)
    with pytest.raises(ValueError, match=r"mask: expected .* \(2, 4, 6, 7\), got \(2, 1, 6, 6"):
        ft.attend(None, query, key, key, make(PATTERNS["causal"]))


def test_table_made_after_the_cache_went_on():
    offset = torch.tensor(4)
    mask, expected = (each(PATTERNS["causal"], 2, 6, q_offset=offset) for each in (make, table))
    offset += 2
    assert torch.equal(mask.flip(3), expected.flip(3))


@pytest.mark.parametrize("part", [slice(None), slice(1, 4)])
def test_written_to(part):
    """A mask that was written to, or one of its parts, is the table that was written to."""
    # Without padding a table is one for the whole batch, expanded, and cannot be written to.
    seen = torch.tensor(TOKENS["left"], dtype=torch.bool)
    mask, expected = (each(PATTERNS["causal"], attention_mask=seen) for each in (make, table))
    rows = mask[:, :, part, :]
    for each in mask, expected:
        each[:, :, 2, 1:] = False
    same(mask, expected, 6, 6)
    expected = expected[:, :, part, :]
    same(rows, expected, expected.shape[2], 6)


# ---- packed --------------------------------------------------------------------------------------


def test_packed_numbers():
    mask = make(packed(PATTERNS["window"]), allow_is_causal_skip=False)
    assert mask.options["window_size"] == (3, 0)
    assert mask.options["cu_seqlens_q"].tolist() == [0, 3, 5, 6, 8, 12]
    assert mask[:, :, :6, :] is mask  # all queries, which a model may ask for by their number


@pytest.mark.parametrize("name", ["causal", "window"])
def test_packed(name):
    function = packed(PATTERNS[name])
    same(make(function), table(function), 6, 6)


@pytest.mark.parametrize("options", [{"output_attentions": True}, {"position_bias": None}], ids=str)
def test_packed_with_weights_or_a_bias(options):
    """There are none in packs: then a table counts."""
    generator = torch.Generator().manual_seed(0)
    query, bias = (torch.randn(2, 4, 6, size, generator=generator) for size in (8, 6))
    options = {name: value or bias for name, value in options.items()}
    function = packed(PATTERNS["window"])
    calls = [ft.attend(None, *[query] * 3, m, **options) for m in (make(function), table(function))]
    torch.testing.assert_close(*calls)


@pytest.mark.parametrize("kind", ["padded", "behind a cache", "in parts"])
def test_packed_in_ways_that_bounds_do_not_say(kind):
    ids = PACKED_IDS if kind != "in parts" else torch.tensor([[0, 0, 1, 1, 0, 0]] * 2)
    one = masking_utils.packed_sequence_mask_function(ids)
    function, queries, options = masking_utils.and_masks(PATTERNS["causal"], one), 6, {}
    if kind == "padded":
        options["attention_mask"] = torch.tensor(TOKENS["right"], dtype=torch.bool)
    elif kind == "behind a cache":
        queries, options["q_offset"] = 2, 4
    mask = make(function, queries, **options)
    same(mask, table(function, queries, **options), queries, 6)


# ---- without a mask, as vision models and users call it ------------------------------------------


class Layer:
    def __init__(self, is_causal):
        self.is_causal = is_causal


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("queries, keys", [(6, 6), (4, 6), (1, 6)])
@pytest.mark.parametrize("causal", [False, True])
def test_no_mask(causal, queries, keys, window):
    """Causality is aligned as in torch, but a single query stands at the end."""
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, queries, 8, generator=generator)
    key, value = (torch.randn(2, 2, keys, 8, generator=generator) for _ in range(2))
    position = torch.arange(queries)[:, None] + (keys - 1 if queries == 1 else 0)
    j = torch.arange(keys)
    allowed = (j <= position) if causal else torch.ones(queries, keys, dtype=torch.bool)
    if window is not None:
        allowed = allowed & ((j - position).abs() < window)
    expected = ft.attend(None, query, key, value, allowed[None, None])[0]
    calls = [(Layer(causal), None), (Layer(not causal), causal)]
    calls += [(None, None)] * causal  # what a layer is that does not say
    for layer, given in calls:
        out = ft.attend(layer, query, key, value, None, is_causal=given, sliding_window=window)[0]
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("mask", ["none", "ranges", "bool", "float"])
def test_position_bias(mask):
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, 6, 8, generator=generator) for _ in range(3))
    bias = torch.randn(1, 4, 6, 6, generator=generator)
    allowed = table(PATTERNS["causal"])
    given = {
        "none": None,
        "ranges": make(PATTERNS["causal"]),
        "bool": allowed,
        "float": torch.zeros(2, 1, 6, 6).masked_fill(~allowed, -torch.inf),
    }[mask]
    options = {"is_causal": False, "scaling": 0.3}
    out, _ = ft.attend(None, query, key, value, given, position_bias=bias, **options)
    expected = bias if mask == "none" else bias.masked_fill(~allowed, -torch.inf)
    truth = torch.nn.functional.scaled_dot_product_attention(query, key, value, expected, scale=0.3)
    torch.testing.assert_close(out, truth.transpose(1, 2), rtol=0, atol=2e-6)


def test_bias_of_a_query_that_sees_nothing():
    query, allowed = torch.ones(1, 2, 3, 8), torch.eye(3, dtype=torch.bool)
    allowed[1] = False
    options = {"position_bias": torch.zeros(1, 2, 3, 3)}
    out, _ = ft.attend(None, query, query, query, allowed[None, None], **options)
    assert out[0, :, 0, 0].tolist() == [1, 0, 1]


def test_weights_are_those_of_the_output():
    query = torch.randn(2, 4, 6, 8, generator=torch.Generator().manual_seed(0))
    options = {"scaling": 0.9, "softcap": 2.0, "output_attentions": True}
    out, weights = ft.attend(None, query, query, query, None, **options)
    torch.testing.assert_close((weights @ query).transpose(1, 2), out)


@pytest.mark.parametrize("keys, size", [([3, 4], None), ([2, 3], 2)])
def test_cu_seq_lens_without_a_mask(keys, size):
    """Each sequence as alone, with keys and options of its own."""
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, 4, sum(each), 8, generator=generator) for each in ([2, 3], keys))
    options = {"is_causal": size == 2, "sliding_window": size, "scaling": 2, "s_aux": torch.ones(4)}
    cuts = [torch.tensor([0, a, a + b], dtype=torch.int32) for a, b in ([2, 3], keys)]
    lengths = dict(zip(("cu_seq_lens_q", "cu_seq_lens_k"), cuts, strict=True))
    out, _ = ft.attend(None, query, key, key, None, **lengths, **options)
    parts = [
        ft.attend(None, rows, keys, keys, None, **options)[0]
        for rows, keys in zip(query.split([2, 3], 2), key.split(keys, 2), strict=True)
    ]
    torch.testing.assert_close(out, torch.cat(parts, 1))


def test_positions_far_out():
    """Numbers of positions survive: they are never converted to the dtype of the model."""
    far = 2**40
    for queries, keys in itertools.product([1, 3], [1, 5]):
        mask = make(PATTERNS["causal"], queries, keys, q_offset=far, kv_offset=far - 1)
        assert decode(mask, queries, keys).get("q_offset", keys - queries) == 1
