# SPDX-License-Identifier: MIT
"""The position-wise feed-forward layer, which the output of attention goes to."""

from dataclasses import dataclass

import numpy.typing as npt

from fastattn import _check_options as options
from fastattn.layers import _check
from fastattn.layers._repr import short_repr
from fastattn.layers.activations import BY_NAME
from fastattn.layers.projections import project


def feed_forward(
    x: npt.NDArray,
    w_in: npt.NDArray,
    w_out: npt.NDArray,
    *,
    b_in: npt.NDArray | None = None,
    b_out: npt.NDArray | None = None,
    w_gate: npt.NDArray | None = None,
    b_gate: npt.NDArray | None = None,
    activation: str = "relu",
) -> npt.NDArray:
    """Two layers for each token by itself, plain or gated.

    Plain, ``f(x W_in + b_in) W_out + b_out`` (Vaswani et al. 2017, arXiv:1706.03762, equation 2);
    with `w_gate`, ``(f(x W_gate + b_gate) * (x W_in + b_in)) W_out + b_out`` (Shazeer 2020,
    arXiv:2002.05202; with silu it is SwiGLU).

    Parameters
    ----------
    x : ndarray, (..., inputs)
        float32 or float64.
    w_in, w_gate : ndarray, (inputs, hidden)
    w_out : ndarray, (hidden, outputs)
        Weights may be stored narrower than x, as in `linear`.
    b_in, b_gate : ndarray, (hidden,), optional
    b_out : ndarray, (outputs,), optional
    activation : {"relu", "gelu", "gelu_tanh", "silu"}
        f.

    Returns
    -------
    ndarray, (..., outputs)

    Raises
    ------
    TypeError
        x is neither float32 nor float64, or a weight is wider than x.
    ValueError
        A shape does not fit, another activation, or `b_gate` without `w_gate`.
    """
    _check_parameters(w_in, w_out, b_in, b_out, w_gate, b_gate, activation)
    return _transformed(x, w_in, w_out, b_in, b_out, w_gate, b_gate, activation)


def _transformed(x, w_in, w_out, b_in, b_out, w_gate, b_gate, activation):
    """Return `feed_forward` of parameters that fit one another."""
    x = _check.activations("x", x, w_in.shape[0])
    function = BY_NAME[activation]
    hidden = project(x, w_in, b_in, ("w_in", "b_in"))
    if w_gate is None:
        hidden = function(hidden)
    else:
        hidden *= function(project(x, w_gate, b_gate, ("w_gate", "b_gate")))
    return project(hidden, w_out, b_out, ("w_out", "b_out"))


def _check_parameters(w_in, w_out, b_in, b_out, w_gate, b_gate, activation):
    """Raise unless the parameters of `feed_forward` fit one another."""
    width, hidden = _check.parameter("w_in", w_in, (None, None)).shape
    _check.optional("w_gate", w_gate, (width, hidden))
    outputs = _check.parameter("w_out", w_out, (hidden, None)).shape[1]
    _check.optional("b_in", b_in, (hidden,))
    _check.optional("b_out", b_out, (outputs,))
    _check.optional("b_gate", b_gate, (hidden,))
    options.choice("activation", activation, tuple(BY_NAME))
    if b_gate is not None and w_gate is None:
        raise ValueError("b_gate: expected None without w_gate, got an array")


@dataclass(frozen=True, eq=False)
class FeedForward:
    """`feed_forward` with its parameters: ``layer(x)``.

    Parameters
    ----------
    w_in, w_out, b_in, b_out, w_gate, b_gate, activation
        As in `feed_forward`.

    Raises
    ------
    TypeError, ValueError
        Parameters of a wrong type, or that do not fit one another.
    """

    w_in: npt.NDArray
    w_out: npt.NDArray
    b_in: npt.NDArray | None = None
    b_out: npt.NDArray | None = None
    w_gate: npt.NDArray | None = None
    b_gate: npt.NDArray | None = None
    activation: str = "relu"

    __repr__ = short_repr

    def __post_init__(self) -> None:
        _check_parameters(
            self.w_in, self.w_out, self.b_in, self.b_out, self.w_gate, self.b_gate, self.activation
        )

    def __call__(self, x: npt.NDArray) -> npt.NDArray:
        """Return ``feed_forward(x, ...)``.

        Parameters
        ----------
        x : ndarray, (..., inputs)
            float32 or float64.

        Returns
        -------
        ndarray, (..., outputs)

        Raises
        ------
        TypeError, ValueError
            As of `feed_forward`.
        """
        return _transformed(
            x, self.w_in, self.w_out, self.b_in, self.b_out, self.w_gate, self.b_gate,
            self.activation,
        )  # fmt: skip
