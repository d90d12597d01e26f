# SPDX-License-Identifier: MIT
"""Probabilities in integers of 16 bits (src_c/pieces/words.inc): their error, what they refuse."""

import re
from pathlib import Path

import cases
import numpy as np
import pytest

import fastattn
from fastattn import _kernels, reference

SOURCE = Path(__file__).parent.parent / "src_c" / "pieces" / "words.inc"
ISA = fastattn.isas()[-1]
on_the_unit = [
    pytest.mark.forces_isa,
    pytest.mark.skipif(
        not _kernels.matrix_pieces(ISA),
        reason="this machine has no unit for bfloat16 (AVX512-BF16, AMX, BFMMLA)",
    ),
]


def table():
    """WORD_LESS."""
    [numbers] = re.findall(r"WORD_LESS\[128\] = {([^}]*)}", SOURCE.read_text())
    return np.array([int(number) for number in numbers.split(",")])


def words_of(x):
    """y of words.inc."""
    return np.rint(512 * (x + 127)).astype(np.int64)


def upper_half(x):
    """Rounded to bfloat16."""
    return x.astype(cases.dtype_of("bfloat16")).astype(np.float64)


def exp2_words(y, less):
    """What exp2_words of words.inc does, on integers."""
    words = (y - less) >> 2
    return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)


def rms(error):
    return float(np.sqrt((error**2).mean()))


def test_the_table_has_the_least_error():
    """Of each of its numbers, alone: they have nothing to do with each other."""
    less = table()
    assert len(less) == 128
    x = np.linspace(-8, 0, 1 << 19, endpoint=False)
    y, expected = words_of(x), 2.0**x
    place = y >> 2 & 127
    assert rms(upper_half(expected) / expected - 1) <= 1.67e-3
    assert rms(exp2_words(y, less[place]) / expected - 1) <= 1.72e-3

    def errors(values):
        return np.bincount(place, (exp2_words(y, values[place]) / expected - 1) ** 2)

    assert (errors(less + 1) >= errors(less)).all()
    assert (errors(np.maximum(less - 1, 0)) >= errors(less)).all()


def test_the_greatest_error():
    """Of a logarithm, that of rounding the exponent included: what the tolerance says, no less."""
    x = np.linspace(-1, 0, 1 << 19, endpoint=False)
    y = words_of(x)
    error = np.abs(np.log(exp2_words(y, table()[y >> 2 & 127])) - x * np.log(2)).max()
    assert 0.99 * cases.WORD < error < cases.WORD


def test_every_power_of_two_is_exact():
    powers = np.arange(-126, 1)
    y = words_of(powers)
    np.testing.assert_array_equal(exp2_words(y, table()[y >> 2 & 127]), 2.0**powers)


def test_the_least_words_stay_above_0():
    """None of them wraps; 0 is 0."""
    y = np.arange(512)
    words = exp2_words(y, table()[y >> 2])
    assert words[0] == 0 and (words < 2.0**-126).all()


def test_logarithms_of_scales():
    """log2_of_scale of scaled.inc on float32, at both sides of its mantissas' ends as well."""
    text = (SOURCE.parent / "scaled.inc").read_text()
    [numbers] = re.findall(r"LOG2\[5\] = {([^}]*)}", text)
    coefficients = [np.float32(number.strip(" \nf")) for number in numbers.split(",")]
    ends = np.float32([0.75, 1, 1.5])
    x = np.concatenate([np.geomspace(2.0**-80, 2.0**6, 1 << 16).astype(np.float32), ends,
                        *(np.nextafter(ends, np.float32(to)) for to in (0, 2))])  # fmt: skip
    mantissa, exponent = np.frexp(x)  # from 1/2 to 1
    low = mantissa < 0.75
    t = np.where(low, 2 * mantissa, mantissa) - 1
    found = exponent - low + t * np.polyval(coefficients[::-1], t)
    assert np.abs(found - np.log2(x.astype(float))).max() <= 1.4e-5


def problem(rng, keys=200, queries=40):
    """Scores are what the first feature of K says."""
    q = np.zeros((1, 1, queries, 64), np.float32)
    k = np.zeros((1, 1, keys, 64), np.float32)
    q[..., 0] = 1
    return q, k, rng.standard_normal((1, 1, keys, 64)).astype(np.float32)


def narrowed(*tensors):
    return [x.astype(cases.dtype_of("bfloat16")) for x in tensors]


@pytest.mark.parametrize("low", [-60, -2e4, -3e4, -1e5, -1e30])
@pytest.mark.parametrize("queries", [20, 40])
class TestOnTheUnit:
    pytestmark = on_the_unit

    def test_scores_far_below(self, low, queries, rng):
        """In units of e: words would take some of them for great ones."""
        q, k, v = problem(rng, queries=queries)
        k[..., 0] = rng.uniform(low, 0, k.shape[:-1])
        k[..., 77, 0] = 0
        q, k, v = narrowed(q, k, v)
        cases.check(cases.run(ISA, q, k, v, scale=1.0), q, k, v, scale=1.0)

    def test_values_far_below_do_not_count(self, low, queries, rng):
        """However great they are: the least word has to be 0, not a small number."""
        q, k, v = problem(rng, queries=queries)
        k[..., 1::2, 0] = low
        v[..., 1::2, :] = 2.0**59 if low < -100 else 1
        q, k, v = narrowed(q, k, v)
        out, _ = cases.run(ISA, q, k, v, scale=1.0)
        seen = [k[:, :, ::2], v[:, :, ::2]] if low < -100 else [k, v]
        expected = reference.attention(q, *seen, scale=1.0)
        np.testing.assert_allclose(out.astype(float), expected.astype(float), atol=2e-2)

    def test_forbidden_scores_may_be_great(self, low, queries, rng):
        q, k, v = problem(rng, queries=queries)
        k[..., 150:, 0] = -low
        mask = rng.random((queries, 200)) < 0.5
        mask[:, 150:], mask[:, 0] = False, True
        q, k, v = narrowed(q, k, v)
        for options in ({"attn_mask": mask}, {"kv_lengths": 150}):
            options["scale"] = 1.0
            cases.check(cases.run(ISA, q, k, v, **options), q, k, v, **options)


@pytest.mark.parametrize("queries", [20, 40])
class TestMasksOnTheUnit:
    """Float masks, which are added on the way to words."""

    pytestmark = on_the_unit

    @pytest.mark.parametrize("low", [-60, -2e4, -3e4, -1e9, -1e30, -np.inf])
    def test_masks_that_all_but_forbid(self, low, queries, rng):
        """Whole rows and whole chunks of 32 keys among them."""
        q, k, v = narrowed(*rng.standard_normal((3, 1, 2, 300, 64), dtype=np.float32))
        q = q[:, :, :queries]
        mask = rng.standard_normal((queries, 300)).astype(np.float32)
        mask[rng.random(mask.shape) < 0.5] = low
        mask[3], mask[:, 64:96], mask[5, :200] = low, low, low
        result = cases.run(ISA, q, k, v, attn_mask=mask, causal=True)
        cases.check(result, q, k, v, attn_mask=mask, causal=True)

    @pytest.mark.parametrize("unknown", [np.nan, -np.nan, np.inf])
    def test_what_is_no_number_reaches_its_row_alone(self, unknown, queries, rng):
        q, k, v = narrowed(*rng.standard_normal((3, 1, 2, 300, 64), dtype=np.float32))
        q = q[:, :, :queries]
        mask = np.zeros((queries, 300), np.float32)
        options = {"causal": True, "q_offset": 200}
        expected = reference.attention(q, k, v, **options).astype(float)
        mask[7, 150], mask[8, 299] = unknown, unknown  # of which causal=True forbids one
        out = cases.run(ISA, q, k, v, attn_mask=mask, **options)[0].astype(float)
        assert np.isnan(out[:, :, 7]).all()
        others = np.arange(queries) != 7
        np.testing.assert_allclose(out[:, :, others], expected[:, :, others], rtol=0, atol=2e-2)


@pytest.mark.parametrize("queries", [20, 40])
class TestScalesOnTheUnit:
    """Words add the logarithms of scales of values, and their inverses give the sum of p."""

    pytestmark = on_the_unit

    def problem(self, rng, queries):
        """Values in units of the greatest, 127, so that outputs are of the size of scales."""
        [q] = narrowed(rng.standard_normal((1, 2, queries, 64), dtype=np.float32))
        k, v = rng.integers(-127, 128, (2, 1, 2, 300, 64), dtype=np.int8)
        return q, k, v

    @pytest.mark.parametrize("low, high", [(-9, -5), (-80, -70), (-12, 5), (3, 12), (-50, 52)])
    def test_sizes(self, low, high, queries, rng):
        q, k, v = self.problem(rng, queries)
        v_scale = (2.0 ** rng.uniform(low, high, (1, 2, 300))).astype(np.float32)
        options = {"k_scale": 0.02, "v_scale": v_scale, "causal": True}
        out, lse = cases.run(ISA, q, k, v, **options)
        expected, expected_lse = reference.attention(q, k, v, return_lse=True, **options)
        np.testing.assert_allclose(lse, expected_lse, rtol=0, atol=cases.WORD)
        # Of every row, what rounding p and the output to bfloat16 leaves
        weights = reference.attention_weights(q, k, k_scale=0.02, causal=True)
        sizes = np.abs(v.astype(float)) * v_scale[..., None]
        allowed = 2.0**-7 * (weights @ sizes) + 2.0**-120
        assert (np.abs(out.astype(float) - expected) <= allowed).all()

    def test_one_key(self, queries, rng):
        """Its weight is that of its scale, with all of the error that there is."""
        [q] = narrowed(rng.standard_normal((1, 512, queries, 64), dtype=np.float32))
        k = np.ones((1, 512, 1, 64), np.int8)
        options = {"k_scale": 0.02, "v_scale": np.geomspace(0.5, 1, 512, dtype=np.float32)}
        cases.check(cases.run(ISA, q, k, k, **options), q, k, k, **options)

    @pytest.mark.parametrize("odd", [0.0, -0.02, 1e-29, 100.0])
    @pytest.mark.parametrize("key", [0, 70, 299])
    @pytest.mark.parametrize("name", ["k_scale", "v_scale"])
    def test_scales_without_words(self, name, odd, key, queries, rng):
        """Blocks of others have them all the same."""
        q, k, v = self.problem(rng, queries)
        options = {"k_scale": 0.02, "v_scale": 0.02, name: np.full((1, 2, 300), 0.02, "f4")}
        options[name][..., key] = odd
        cases.check(cases.run(ISA, q, k, v, **options), q, k, v, **options)

    def test_scores_far_below(self, queries, rng):
        """Where p times the scale has no word, but p has."""
        q, k, v = self.problem(rng, queries)
        k_scale = rng.uniform(0, 3, (1, 2, 300)).astype(np.float32)
        options = {"k_scale": k_scale, "v_scale": 2.0**-30}
        cases.check(cases.run(ISA, q, k, v, **options), q, k, v, **options)


class TestErrorOnTheUnit:
    pytestmark = on_the_unit

    def test_probabilities(self):
        """A row each, beside a probability of 1 and others of 0: its sum is what the unit takes."""
        x = upper_half(np.linspace(0, 8, 16 * 40, endpoint=False, dtype=np.float32))
        q, k, v = (np.zeros((1, 16, rows, 64), np.float32) for rows in (40, 64, 64))
        q[..., 0], q[..., 1] = x.reshape(q.shape[:-1]), 1
        k[..., 1, 0], k[..., 2:, 1] = -1, -1000
        _, lse = cases.run(ISA, *narrowed(q, k, v), scale=float(np.log(2)))
        p = np.expm1(lse.astype(np.float64)).ravel()
        assert rms(p / 2.0**-x - 1) <= 1.8e-3


@pytest.mark.parametrize("depth", [32, 64, 96, 128, 160, 256])
@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
class TestTurns:
    """Every depth takes its own turns at the scores of the next chunk."""

    pytestmark = on_the_unit

    def test_all_keys_have_their_scores(self, depth, kind, rng):
        dtype = cases.dtype_of(kind)
        q, k, v = (
            rng.standard_normal((1, 2, rows, depth)).astype(dtype) for rows in (96, 300, 300)
        )
        cases.check(cases.run(ISA, q, k, v), q, k, v)
        cases.check(cases.run(ISA, q, k, v, causal=True), q, k, v, causal=True)

    def test_a_chunk_that_raises_the_maximum_begins_again(self, depth, kind, rng):
        dtype = cases.dtype_of(kind)
        q, k, v = (
            rng.standard_normal((1, 1, rows, depth)).astype(np.float32) for rows in (64, 520, 520)
        )
        k *= np.repeat(np.linspace(0.1, 6, 65), 8)[:520, None]  # rises within chunks as well
        q, k, v = q.astype(dtype), k.astype(dtype), v.astype(dtype)
        cases.check(cases.run(ISA, q, k, v), q, k, v)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", "float32"])
class TestGreatScores:
    """With which the running maximum is rounded to much more than 1."""

    pytestmark = on_the_unit

    @pytest.mark.parametrize("size", [3e2, 1e4, 1e6, 1e8])
    def test_scores(self, kind, size, rng):
        size = min(size, 3e2) if kind == "float16" else size
        q, k, v = (
            rng.standard_normal((1, 2, rows, 64)).astype(np.float32) for rows in (80, 600, 600)
        )
        q, k, v = (x.astype(cases.dtype_of(kind)) for x in (q * size, k * size, v))
        out, _ = cases.run(ISA, q, k, v)
        expected = reference.attention(q, k, v).astype(float)
        error = np.abs(out.astype(float) - expected).max(axis=-1)
        # float32 cannot tell scores apart that differ by less than a 2^-24th of the greatest
        scores = reference.attention(q, k, v, return_scores="scaled")[-1]
        first, second = np.sort(scores, axis=-1)[..., -1], np.sort(scores, axis=-1)[..., -2]
        clear = first - second > 40 + 2.0**-18 * np.abs(scores).max()
        assert clear.mean() > 0.5
        assert (error[clear] <= 2.0**-7 * np.abs(v.astype(float)).max()).all()

    @pytest.mark.parametrize("size", [1e6, 1e30])
    def test_masks(self, kind, size, rng):
        q, k, v = (
            rng.standard_normal((1, 2, rows, 64)).astype(cases.dtype_of(kind))
            for rows in (80, 600, 600)
        )
        mask = np.zeros((80, 600), np.float32)
        chosen = rng.integers(0, 600, 80)
        mask[np.arange(80), chosen] = size
        out, _ = cases.run(ISA, q, k, v, attn_mask=mask)
        np.testing.assert_array_equal(out, v[:, :, chosen])
        slopes = np.array([-size, -1e3])
        out, _ = cases.run(ISA, q, k, v, alibi_slopes=slopes, q_offset=0)
        np.testing.assert_array_equal(out, np.broadcast_to(v[:, :, -1:], out.shape))
