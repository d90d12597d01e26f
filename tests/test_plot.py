# SPDX-License-Identifier: MIT
"""Pictures of attention weights."""

import io

import numpy as np
import pytest

import fastattn
from fastattn import plot

pytestmark = pytest.mark.forces_isa

pytest.importorskip("matplotlib")


def drawn(figure):
    """Return the panels, without the colour bar, of a figure that can be drawn."""
    figure.savefig(io.BytesIO(), format="png")
    return figure.axes[:-1]


def test_masked_cells_are_distinct(rng):
    x = rng.standard_normal((5, 8)).astype(np.float32)
    weights = fastattn.attention_weights(x, x, causal=True)
    [panel] = drawn(plot.heatmap(weights, list("abcde")))
    shown = panel.images[0].get_array()
    np.testing.assert_array_equal(shown.mask, np.triu(np.ones((5, 5), bool), 1))
    np.testing.assert_allclose(shown.filled(0), weights, rtol=1e-6)
    colors = panel.images[0].to_rgba(shown)
    assert len(set(colors[0, 1, :3])) == 1  # grey, which no weight is
    assert len(set(colors[4, 0, :3])) > 1
    assert [text.get_text() for text in panel.get_yticklabels()] == list("abcde")


@pytest.mark.parametrize("count", [1, 2, 3, 40])
def test_without_words_whole_tokens_are_counted(count):
    [panel] = drawn(plot.heatmap(np.ones((count, count))))
    for axis in (panel.xaxis, panel.yaxis):
        shown = [tick for tick in axis.get_majorticklocs() if -0.5 <= tick <= count - 0.5]
        assert 0 in shown
        assert all(tick == int(tick) for tick in shown)


def test_several_heads(rng):
    weights = rng.random((6, 3, 4))
    panels = drawn(plot.heatmap(weights, list("abc"), key_tokens=list("wxyz")))
    assert [panel.get_title() for panel in panels] == [f"head {n}" for n in range(1, 7)]
    assert [text.get_text() for text in panels[0].get_xticklabels()] == list("wxyz")
    titles = [f"t{n}" for n in range(6)]
    panels = drawn(plot.heatmap(weights, titles=titles, allowed=weights > 0.5))
    assert [panel.get_title() for panel in panels] == titles
    np.testing.assert_array_equal(panels[2].images[0].get_array().mask, weights[2] <= 0.5)


def test_allowed_may_be_numbers():
    [panel] = drawn(plot.heatmap(np.full((2, 2), 0.5), allowed=[[1, 0], [1, 1]]))
    np.testing.assert_array_equal(panel.images[0].get_array().mask, [[False, True], [False, False]])


def test_words_are_no_formulas():
    [panel] = drawn(plot.heatmap(np.ones((2, 2)), ["$$", "$x_1$"], titles=[r"$\no$"]))
    for axis in (panel.xaxis, panel.yaxis):
        assert [text.get_text() for text in axis.get_ticklabels()] == ["$$", "$x_1$"]
        assert not any(text.get_parse_math() for text in axis.get_ticklabels())
    assert panel.get_title() == r"$\no$"


def test_many_tokens_have_no_words(rng):
    [panel] = drawn(plot.heatmap(rng.random((90, 90)), [str(n) for n in range(90)]))
    assert len(panel.get_yticks()) < 90
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("key", "query")
    assert {text.get_rotation() for text in panel.get_xticklabels()} == {0}
    assert max(panel.figure.get_size_inches()) < 40
    [panel] = drawn(plot.heatmap(np.ones((2, 90)), list("ab"), key_tokens=["word"] * 90))
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("key", "")
    assert {text.get_rotation() for text in panel.get_xticklabels()} == {0}


def test_as_many_words_as_can_be_read():
    words = [str(n) for n in range(plot.WORDS)]
    [panel] = drawn(plot.heatmap(np.ones((2, plot.WORDS)), list("ab"), key_tokens=words))
    assert [text.get_text() for text in panel.get_xticklabels()] == words
    assert {text.get_rotation() for text in panel.get_xticklabels()} == {90}
    width, height = panel.figure.get_size_inches()
    assert width > 2 * height


def test_largest_is_the_darkest():
    for options, largest in ({"largest": 0.3}, 0.3), ({}, 1.0):
        [panel] = drawn(plot.heatmap(np.full((2, 2), 0.2), **options))
        assert panel.images[0].get_clim() == (0, largest)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (([1.0, 2.0],), r"weights: expected \(queries, keys\) .* got shape \(2,\)"),
        ((np.ones((0, 3)),), "weights: .* got shape"),
        ((np.ones((2, 3)), ["a"]), "tokens: expected 2, one for each, got 1"),
        ((np.ones((2, 3)), ["a", "b"]), "key_tokens: expected 3, one for each, got 2"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        plot.heatmap(*arguments)


WEIGHTS = np.full((2, 2), 0.5)
WRONG = {
    "weights": ({"weights": [[1, 2], [3]]}, ValueError, "an array, got a list of unequal parts"),
    "weights complex": ({"weights": WEIGHTS * 1j}, TypeError, "an array of real numbers, got d"),
    "tokens": ({"tokens": 3}, TypeError, "a sequence of words, got int"),
    "titles": ({"titles": np.array("a")}, TypeError, "a sequence of words, got numpy.ndarray"),
    "allowed": ({"allowed": "x"}, TypeError, "an array of real numbers, got dtype str"),
    "largest": ({"largest": np.nan}, ValueError, "a finite number, got nan"),
    "largest bool": ({"largest": True}, TypeError, "a number, got bool"),
    "largest zero": ({"largest": 0}, ValueError, "a positive number, got 0"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_types_are_named(case):
    changes, error, message = WRONG[case]
    with pytest.raises(error, match=f"^{case.split()[0]}: expected {message}"):
        plot.heatmap(**{"weights": WEIGHTS, **changes})


def test_largest_of_each_head():
    [panel] = drawn(plot.heatmap(np.array([[0.1, 0.2], [0.3, 0.1]]), largest=None))
    assert panel.images[0].get_clim() == (0, 0.3)


@pytest.mark.parametrize("shape", [(2,), (3, 2), (1, 2, 2, 3)])
def test_allowed_of_another_shape(shape):
    with pytest.raises(ValueError) as caught:
        plot.heatmap(np.ones((2, 2, 3)), allowed=np.ones(shape, bool))
    expected = f"allowed: expected a shape that broadcasts to (2, 2, 3), got {shape}"
    assert str(caught.value) == expected


def test_titles_are_counted():
    with pytest.raises(ValueError, match="titles: expected 2"):
        plot.heatmap(np.ones((2, 3, 3)), titles=["one"])
