# SPDX-License-Identifier: MIT
"""Autoregressive decoding: p(y_i | y_1 .. y_{i-1}), one token after the other.

A model is here a function from new tokens to the scores (logits) of the token after them; what it
remembers of the tokens before is its own affair, in caches.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from fastattn import _check_options as options
from fastattn.layers import _check
from fastattn.layers.batching import pad, sequences

Choice = Callable[[npt.NDArray], npt.NDArray]
Step = Callable[[npt.NDArray, npt.NDArray | None], npt.NDArray]

ENDED = -1


def greedy(logits: npt.NDArray) -> npt.NDArray:
    """Return the token of the highest score in each row.

    Parameters
    ----------
    logits : ndarray, (batch, vocabulary)

    Returns
    -------
    ndarray of int64, (batch,)

    Raises
    ------
    TypeError, ValueError
        Logits of a wrong type or shape, or NaN among them.
    """
    logits = _check.logits(logits)
    chosen = np.argmax(logits, axis=-1)
    # Of a row with NaN it is the place of one: no other element has to be looked at.
    wrong = np.flatnonzero(np.isnan(logits[np.arange(len(logits)), chosen]))
    if wrong.size:
        raise ValueError(f"logits: expected numbers, got NaN in row {wrong[0]}")
    return chosen


@dataclass
class Sampler:
    """Draws a token by its probability, ``softmax(logits / temperature)``.

    Parameters
    ----------
    temperature : float
        Positive; towards 0 it becomes greedy.
    top_k : int, optional
        Only the k likeliest tokens (Fan et al. 2018, arXiv:1805.04833).
    top_p : float, optional
        Only the fewest likeliest tokens that together have at least this probability (Holtzman et
        al. 2020, arXiv:1904.09751), counted after `top_k`.
    seed : int or numpy.random.Generator, optional
        The same seed, at least 0, draws the same tokens: for each row from a stream of its own, so
        that rows beside it change nothing.

    Raises
    ------
    TypeError, ValueError
        A setting of a wrong type or out of range.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | np.random.Generator | None = None
    _random: np.random.Generator = field(init=False, repr=False, compare=False)
    _streams: list[np.random.Generator] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if options.number("temperature", self.temperature) <= 0:
            raise ValueError(
                f"temperature: expected a positive number, got {self.temperature:g} (the greedy "
                "choice has no temperature)"
            )
        if self.top_k is not None:
            options.integer("top_k", self.top_k, 1)
        if self.top_p is not None and not 0 < options.number("top_p", self.top_p) <= 1:
            raise ValueError(f"top_p: expected a number above 0, up to 1, got {self.top_p:g}")
        if self.seed is not None and not isinstance(self.seed, np.random.Generator):
            options.integer("seed", self.seed, 0)
        self._random, self._streams = np.random.default_rng(self.seed), []

    def probabilities(self, logits: npt.NDArray) -> npt.NDArray:
        """Return what is drawn from.

        Parameters
        ----------
        logits : ndarray, (batch, vocabulary)
            Finite, or -inf for what is never drawn.

        Returns
        -------
        ndarray of float64, (batch, vocabulary)
            Rows sum to 1.

        Raises
        ------
        ValueError
            A row has no distribution: it holds NaN or +inf, or nothing but -inf.
        """
        scores = _check.with_softmax(logits)
        scores -= scores.max(axis=-1, keepdims=True)
        with np.errstate(over="ignore"):  # -inf is the limit of what a small temperature divides
            scores /= self.temperature
        if self.top_k is not None and self.top_k < scores.shape[-1]:
            rest = np.argpartition(-scores, self.top_k - 1, axis=-1)[:, self.top_k :]
            np.put_along_axis(scores, rest, -np.inf, axis=-1)
        weights = np.exp(scores)
        weights /= weights.sum(axis=-1, keepdims=True)
        if self.top_p is not None and self.top_p < 1:
            order = np.argsort(-weights, axis=-1, kind="stable")
            falling = np.take_along_axis(weights, order, axis=-1)
            before = np.cumsum(falling, axis=-1) - falling
            np.put_along_axis(weights, order, np.where(before < self.top_p, falling, 0.0), axis=-1)
            weights /= weights.sum(axis=-1, keepdims=True)
        return weights

    def __call__(self, logits: npt.NDArray) -> npt.NDArray:
        """Draw one token for each row.

        Parameters
        ----------
        logits : ndarray, (batch, vocabulary)
            As in `probabilities`.

        Returns
        -------
        ndarray of int64, (batch,)

        Raises
        ------
        ValueError
            As of `probabilities`. Nothing is drawn.
        """
        reached = np.cumsum(self.probabilities(logits), axis=-1)
        for _ in range(len(self._streams), len(reached)):
            self._streams.append(np.random.default_rng(self._random.integers(2**63)))
        uniform = [[stream.random()] for stream in self._streams[: len(reached)]]
        drawn = np.array(uniform).reshape(-1, 1) * reached[:, -1:]
        return (reached <= drawn).sum(axis=-1)


def chooser(
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | np.random.Generator | None = None,
) -> Choice:
    """Return `greedy` for temperature 0, else a `Sampler`.

    Parameters
    ----------
    temperature, top_k, top_p, seed
        As of `Sampler`. For temperature 0 the other three must be None.

    Returns
    -------
    callable
        From logits (batch, vocabulary) to tokens (batch,).

    Raises
    ------
    TypeError, ValueError
        A setting is wrong, or would have no effect.
    """
    if options.number("temperature", temperature, 0.0) > 0:
        return Sampler(temperature, top_k, top_p, seed)
    for name, value in ("top_k", top_k), ("top_p", top_p), ("seed", seed):
        if value is not None:
            raise ValueError(f"{name}: expected None with temperature 0, got {value}")
    return greedy


def decode(
    step: Step,
    prompts: Sequence[npt.NDArray],
    choose: Choice,
    *,
    max_new_tokens: int,
    stop_ids: Collection[int] = (),
) -> Iterator[npt.NDArray]:
    """Yield the next token of every sequence, until all have ended.

    Parameters
    ----------
    step : callable
        ``step(ids, lengths)`` takes the new tokens (batch, tokens), of which the first
        lengths[b] are real (None: all), and returns the logits of what comes next
        (batch, vocabulary). A sequence that has ended has none; its logits may be anything.
    prompts : sequence of array of int, (tokens,)
        What the first step takes; at least one token each.
    choose : callable
        From logits to tokens: `greedy`, or a `Sampler`.
    max_new_tokens : int
    stop_ids : collection of int
        A sequence ends with the first of these that it gets.

    Yields
    ------
    ndarray of int64, (batch,)
        -1 for a sequence that ended before.

    Raises
    ------
    TypeError, ValueError
        Arguments of a wrong type or out of range, not before the first token is asked for; or what
        a callable returned.
    """
    _check.function("step", step)
    _check.function("choose", choose)
    rows, _ = sequences("prompts", prompts)
    stops = _check.stop_ids(stop_ids)
    ids, sizes = pad(rows)
    lengths = None if (sizes == ids.shape[1]).all() else sizes
    ended = np.zeros(len(ids), bool)
    for _ in range(options.integer("max_new_tokens", max_new_tokens, 0)):
        logits = _check.for_each("step(ids, lengths)", step(ids, lengths), len(ids))
        if ended.any():  # their logits may be anything, NaN too, which `Sampler` refuses
            logits = np.where(ended[:, None], 0, logits)
        chosen = _check.chosen("choose(logits)", choose(logits), len(ids))
        yield np.where(ended, ENDED, chosen)
        ended |= np.isin(chosen, stops)
        if ended.all():
            return
        ids, lengths = chosen[:, None], (~ended).astype(np.int64) if ended.any() else None


def collected(steps: Iterator[npt.NDArray], batch: int) -> list[npt.NDArray]:
    """Return what `decode` yielded as one array of tokens for each of the `batch` sequences."""
    tokens = np.array(list(steps), np.int64).reshape(-1, batch)
    return [column[column != ENDED] for column in tokens.T]
