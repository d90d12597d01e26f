# SPDX-License-Identifier: MIT
"""The problems that are measured: what of them counts, which there are, and can be."""

import dataclasses

import numpy as np
import pytest
from fake_peers import SMALL

from fastattn import reference
from fastattn.measure import masking, suites
from fastattn.measure.problems import Problem, allowed_pairs


def test_pairs_are_those_the_oracle_allows():
    special = {
        "causal": True, "mask": "blocks", "Sq": 150, "Sk": 170, "B": 2, "Hq": 2, "D": 4,
    }  # fmt: skip
    for options in (special, special | {"padded": True}, special | {"mask": "random"}):
        problem = Problem(**options)
        inputs = problem.inputs()
        scores = reference.attention(
            inputs.q, inputs.k, inputs.v, attn_mask=inputs.mask, causal=True,
            kv_lengths=inputs.kv_lengths, q_offset=20, return_scores="masked",
        )[1]  # fmt: skip
        assert problem.pairs() == np.count_nonzero(scores > -np.inf)
        assert problem.flops() == 16 * problem.pairs()


def test_pairs_of_simple_problems():
    assert SMALL.pairs() == 2 * 4 * 20 * 20
    assert Problem(Sq=10, causal=True).pairs() == 55
    assert Problem(Sq=64, D=8, Dv=4).flops() == 2 * 12 * 64 * 64
    assert allowed_pairs(4, 4, window=(1, 0)) == 7
    mask = np.array([[0.0, -np.inf, 1.0]])
    assert allowed_pairs(4, 3, mask=mask) == 8


def test_block_mask_is_half_empty_and_leaves_no_row_without_keys():
    mask = Problem(Sq=1024, mask="blocks").inputs().mask
    blocks = mask.reshape(16, 64, 16, 64)
    assert (blocks.all((1, 3)) == blocks.any((1, 3))).all()
    assert blocks.any((1, 3)).mean() == 0.5
    assert mask.any(1).all()
    assert Problem(Sq=64, Sk=2, mask="random").inputs().mask.any(1).all()
    share = Problem(Sq=256, mask="random").inputs().mask.mean()
    assert share == pytest.approx(0.9, abs=0.005)  # four times the deviation of so many draws


@pytest.mark.parametrize("name", [*suites.SUITES, "all"])
def test_suites(name):
    chosen = suites.suite(name)
    labels = [problem.name for problem in chosen]
    assert len(labels) == len(set(labels)) > 0


def test_prefill_grid_is_the_one_that_is_promised():
    shapes = [(p.Sq, p.D) for p in suites.suite("causal")]
    lengths = (256, 512, 1024, 2048, 4096)
    assert sorted(shapes) == [(n, d) for n in lengths for d in (64, 128)]
    assert all(p.Hq == 8 and p.B == 1 and p.causal for p in suites.suite("causal"))


SIZES = "shape: expected sizes of at least 1, got "
PACKED = "shape: packed sequences have no batch and no mask in "
BAD = {
    "mask": ({"mask": "holes"}, "mask: expected one of none, "),
    "heads": ({"Hq": 3, "Hkv": 2}, "shape: Hq is no multiple of Hkv in (1, 3, 2, 1, 1, 64)"),
    "keys": ({"Sq": 0, "Sk": -1}, SIZES + "(1, 1, 1, 0, -1, 64)"),
    "batch": ({"B": 0}, SIZES),
    "values": ({"Dv": -1}, SIZES),
    "numbers": ({"B": 2**40, "D": 2**20}, "shape: expected arrays of less than 2^60 numbers"),
    "packed batch": ({"B": 2, "packed": ((1, 9),)}, PACKED),
    "packed mask": ({"mask": "random", "packed": ((1, 9),)}, PACKED),
    "packed and padded": ({"padded": True, "packed": ((1, 9),)}, PACKED),
    "window": ({"window": 0}, "window: expected causal=True with it"),
}


@pytest.mark.parametrize("options, message", BAD.values(), ids=BAD)
def test_what_is_no_problem_is_named(options, message):
    with pytest.raises(ValueError) as caught:
        Problem(**options)
    assert str(caught.value).startswith(message)


def test_a_suite_that_there_is_not_is_named():
    with pytest.raises(ValueError) as caught:
        suites.suite("long")
    listed = ", ".join([*suites.SUITES, "all"])
    assert str(caught.value) == f"suite: expected one of {listed}, got 'long'"


def test_bytes_are_those_that_have_to_be_read():
    one = Problem(Hq=8, Hkv=2, Sq=1, Sk=100, D=4)
    assert one.kv_bytes() == 2 * 100 * 2 * 4 * 4
    assert one.bytes() == one.kv_bytes() + 8 * 2 * 4 * 4
    assert dataclasses.replace(one, name="", kv_dtype="int8").kv_bytes() == one.kv_bytes() // 4
    assert dataclasses.replace(one, name="", causal=True, window=9).keys_seen() == 10
    packed = Problem(causal=True, packed=((1, 100), (3, 50)))
    assert packed.keys_seen() == 150
    assert packed.pairs() == 100 + 48 + 49 + 50
    padded = Problem(B=3, Sq=8, padded=True)
    assert padded.keys_seen() == padded.inputs().kv_lengths.sum()


@pytest.mark.parametrize("causal, window", [(False, -1), (True, -1), (True, 4)])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("mask", ["none", "random", "float"])
@pytest.mark.parametrize("queries", [1, 20, 30])
def test_masks_for_other_libraries_forbid_what_the_options_do(
    queries, mask, padded, causal, window
):
    problem = Problem(B=3, Sq=queries, Sk=30, D=4, mask=mask, padded=padded, causal=causal,
                      window=window)  # fmt: skip
    inputs = problem.inputs()
    tensors, options = (inputs.q, inputs.k, inputs.v), {"kv_lengths": inputs.kv_lengths}
    if mask != "float":
        options["attn_mask"] = inputs.mask
    positions = {"causal": causal, "window_size": (window, -1), "q_offset": 30 - queries}
    for within, more in (False, {}), (True, positions):
        masked = reference.attention(*tensors, return_scores="masked", **options, **more)[1]
        found = masking.bool_mask(problem, inputs, within)
        numbers = masking.additive_mask(problem, inputs, within)
        found = np.broadcast_to(True if found is None else found, masked.shape)
        np.testing.assert_array_equal(found, masked > -np.inf)
        expected = np.where(found, inputs.mask if mask == "float" else 0.0, np.finfo("f4").min)
        if numbers is None:
            assert not expected.any()
        else:
            assert numbers.dtype == np.float32
            np.testing.assert_array_equal(np.broadcast_to(numbers, masked.shape), expected)


def test_libraries_that_take_a_flag_get_it_where_it_means_the_same():
    """It is aligned at the top left; nor is there a mask beside it."""
    for options, flag in (
        ({}, True), ({"causal": False}, False), ({"Sk": 9}, False), ({"window": 3}, False),
        ({"mask": "random"}, False), ({"B": 2, "padded": True}, False), ({"mask": "float"}, False),
    ):  # fmt: skip
        problem = Problem(**{"Sq": 8, "causal": True, **options})
        inputs = problem.inputs()
        found, mask = masking.flag_and_mask(problem, inputs)
        expected = masking.bool_mask(problem, inputs, causal=not flag)
        assert found == flag
        np.testing.assert_array_equal(mask, inputs.mask if problem.mask == "float" else expected)
