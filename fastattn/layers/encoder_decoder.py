# SPDX-License-Identifier: MIT
"""Encoder and decoder together: a source sequence in, a target sequence out, token by token."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fastattn import _check_options as options
from fastattn.layers import _check
from fastattn.layers._repr import short_repr
from fastattn.layers.batching import Ids, pad, sequences
from fastattn.layers.decoder import Decoder
from fastattn.layers.decoding import Choice, Sampler, collected, decode, greedy
from fastattn.layers.embedding import Embedding
from fastattn.layers.encoder import Encoder
from fastattn.layers.positions import token_positions
from fastattn.layers.projections import project


@dataclass(frozen=True, eq=False)
class EncoderDecoder:
    """The transformer of Vaswani et al. 2017, arXiv:1706.03762.

    Parameters
    ----------
    encoder : Encoder
    decoder : Decoder
        Its layers have cross-attention.
    source_embedding, target_embedding : Embedding
    w_head : ndarray, (D_model, vocabulary), optional
        From the decoder's output to logits. Default: the target table, transposed (section 3.4).
    b_head : ndarray, (vocabulary,), optional

    Raises
    ------
    TypeError, ValueError
        A part of a wrong type, a head of a wrong shape, or decoder layers without cross-attention.
    """

    encoder: Encoder
    decoder: Decoder
    source_embedding: Embedding
    target_embedding: Embedding
    w_head: npt.NDArray | None = None
    b_head: npt.NDArray | None = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        _check.function("encoder", self.encoder)
        _check.instance("decoder", self.decoder, Decoder)
        _check.function("source_embedding", self.source_embedding)
        _check.instance("target_embedding", self.target_embedding, Embedding)
        vocabulary, width = self.target_embedding.table.shape
        _check.optional("w_head", self.w_head, (width, vocabulary))
        _check.optional("b_head", self.b_head, (vocabulary,))
        if any(getattr(each, "cross_attention", None) is None for each in self.decoder.layers):
            raise ValueError("decoder: expected cross-attention in every layer")

    def encode(
        self, source_ids: npt.NDArray, *, source_lengths: npt.NDArray | None = None
    ) -> npt.NDArray:
        """Return the memory of the source.

        Parameters
        ----------
        source_ids : array of int, (batch, keys)
        source_lengths : array of int, (batch,), optional
            Tokens of the source that are real.

        Returns
        -------
        ndarray, (batch, keys, D_model)

        Raises
        ------
        TypeError, ValueError
            Ids or lengths of a wrong type, or that the tables or the ids do not have.
        """
        with _check.renamed(ids="source_ids", lengths="source_lengths"):
            return self.encoder(self.source_embedding(source_ids), lengths=source_lengths)

    def __call__(
        self,
        source_ids: npt.NDArray,
        target_ids: npt.NDArray,
        *,
        source_lengths: npt.NDArray | None = None,
    ) -> npt.NDArray:
        """Return the logits of the token after each token of the target.

        Parameters
        ----------
        source_ids : array of int, (batch, keys)
        target_ids : array of int, (batch, tokens)
        source_lengths : array of int, (batch,), optional

        Returns
        -------
        ndarray, (batch, tokens, vocabulary)

        Raises
        ------
        TypeError, ValueError
            Ids or lengths of a wrong type, or that the tables or the ids do not have.
        """
        memory = self.encode(source_ids, source_lengths=source_lengths)
        with _check.renamed(ids="target_ids", memory_lengths="source_lengths"):
            x = self.target_embedding(target_ids)
            _check_batches(memory.shape[:-2], x.shape[:-2])
            x = self.decoder(x, memory, memory_lengths=source_lengths)
        return self._logits(x)

    def greedy(
        self,
        source_ids: Ids,
        *,
        begin_id: int,
        max_new_tokens: int,
        stop_ids: Collection[int] = (),
    ) -> list[npt.NDArray] | npt.NDArray:
        """Return the target, choosing the likeliest token each time.

        Parameters
        ----------
        source_ids : array of int (keys,) or (batch, keys), or sequence of rows of any lengths
        begin_id : int
            What the target begins with; not part of the result.
        max_new_tokens : int
        stop_ids : collection of int
            A target ends with the first of these, which is part of the result.

        Returns
        -------
        ndarray of int64, (tokens,)
            Or a list of them, for several sources.

        Raises
        ------
        TypeError
            Ids or numbers that are no integers.
        ValueError
            No source, one without a token, a number that a table does not have, or
            `max_new_tokens` below 0.
        """
        return self._generate(source_ids, greedy, begin_id, max_new_tokens, stop_ids)

    def sample(
        self,
        source_ids: Ids,
        *,
        begin_id: int,
        max_new_tokens: int,
        stop_ids: Collection[int] = (),
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | np.random.Generator | None = None,
    ) -> list[npt.NDArray] | npt.NDArray:
        """Return the target, drawing each token by its probability.

        Parameters
        ----------
        source_ids, begin_id, max_new_tokens, stop_ids
            As in `greedy`.
        temperature, top_k, top_p, seed
            As in `Sampler`.

        Returns
        -------
        ndarray of int64, (tokens,)
            Or a list of them, for several sources.

        Raises
        ------
        TypeError, ValueError
            As of `greedy` and `Sampler`.
        """
        sampler = Sampler(temperature, top_k, top_p, seed)
        return self._generate(source_ids, sampler, begin_id, max_new_tokens, stop_ids)

    def _generate(self, source_ids, choose: Choice, begin_id, max_new_tokens, stop_ids):
        max_new_tokens = options.integer("max_new_tokens", max_new_tokens, 0)
        stop_ids = _check.stop_ids(stop_ids)
        sources, alone = sequences("source_ids", source_ids)
        ids, lengths = pad(sources)
        last = len(self.target_embedding.table) - 1
        begin = options.per_batch("begin_id", begin_id, (), 0, last)
        steps = self._steps(ids, lengths, max_new_tokens)
        stream: Iterator[npt.NDArray] = decode(
            steps, [begin] * len(ids), choose, max_new_tokens=max_new_tokens, stop_ids=stop_ids
        )
        targets = collected(stream, len(ids))
        return targets[0] if alone else targets

    def _steps(self, ids, lengths, max_new_tokens):
        """Return the function of one step of `decode`: memory projected once, targets cached."""
        memory = self.encode(ids, source_lengths=lengths)
        projected = self.decoder.keys_values(memory, lengths=lengths)
        caches = self.decoder.new_caches(len(ids), max(1, max_new_tokens), dtype=memory.dtype)

        def step(new_ids, new_lengths):
            positions = token_positions(new_ids.shape[1], caches[0].lengths)
            x = self.target_embedding(new_ids, positions)
            x = self.decoder(
                x, projected, caches=caches, lengths=new_lengths, memory_lengths=lengths
            )
            return self._logits(x[:, -1])

        return step

    def _logits(self, x):
        head = self.target_embedding.table.T if self.w_head is None else self.w_head
        return project(x, head, self.b_head, ("w_head", "b_head"))


def _check_batches(source, target):
    """Refuse leading axes of the source that do not broadcast to those of the target."""
    fits = len(source) <= len(target) and all(
        found in (1, size) for found, size in zip(source[::-1], target[::-1], strict=False)
    )
    if not fits:
        raise ValueError(
            f"source_ids: expected a batch {target} like that of target_ids, got {source}"
        )
