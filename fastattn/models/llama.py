# SPDX-License-Identifier: MIT
"""Llama-family language models: prompt tokens in, the tokens that follow out."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastattn import _check_options as options
from fastattn.caches.base import DType
from fastattn.layers import _check
from fastattn.layers._repr import short_repr
from fastattn.layers.batching import Ids, sequences
from fastattn.layers.cache import Cache, check_caches, restored_on_error
from fastattn.layers.decoder import Decoder
from fastattn.layers.decoding import chooser, collected, decode
from fastattn.layers.embedding import Embedding
from fastattn.layers.positions import token_positions
from fastattn.layers.projections import project
from fastattn.models.texts import own_tokenizer


@dataclass(frozen=True, eq=False)
class Llama:
    """A decoder with its embedding, its head and its tokenizer, as `load_llama` makes it.

    Touvron et al. 2023, arXiv:2302.13971.

    Parameters
    ----------
    embedding : Embedding
    decoder : Decoder
        Its layers have no cross-attention.
    w_head : ndarray, (D_model, vocabulary), optional
        From the decoder's output to logits. Default: the embedding's table, transposed.
    stop_ids : collection of int
        Tokens that end a sequence, unless a call says otherwise.
    tokenizer : tokenizers.Tokenizer, optional
        Or anything with its methods ``encode(text)``, which returns an object with `ids`, and
        ``decode(ids)``. A copy is kept that neither pads nor cuts; the object itself only if it
        cannot be copied (parts of it are written in Python).

    Raises
    ------
    TypeError, ValueError
        A part of a wrong type, a head of a wrong shape, or stop_ids that are no integers.
    """

    embedding: Embedding
    decoder: Decoder
    w_head: npt.NDArray | None = None
    stop_ids: Collection[int] = ()
    tokenizer: Any = None

    __repr__ = short_repr

    def __post_init__(self) -> None:
        _check.instance("embedding", self.embedding, Embedding)
        _check.instance("decoder", self.decoder, Decoder)
        vocabulary, width = self.embedding.table.shape
        _check.optional("w_head", self.w_head, (width, vocabulary))
        _check.stop_ids(self.stop_ids)
        if self.tokenizer is not None:
            _check.methods("tokenizer", self.tokenizer, "encode", "decode")
            object.__setattr__(self, "tokenizer", own_tokenizer(self.tokenizer, None))

    def new_caches(self, batch: int, capacity: int, *, dtype: DType | None = None) -> list[Cache]:
        """Return an empty `fastattn.KVCache` for each layer.

        Parameters
        ----------
        batch : int
        capacity : int
            Tokens of each sequence that there is room for, prompt and all.
        dtype : dtype, optional
            Of the keys and values. Default: that of the activations, float32 (float64 for a
            float64 model).

        Returns
        -------
        list of KVCache
        """
        dtype = self.embedding.dtype if dtype is None else dtype
        return self.decoder.new_caches(batch, capacity, dtype=dtype)

    def __call__(
        self,
        ids: npt.NDArray,
        *,
        caches: Sequence[Cache] | None = None,
        lengths: npt.NDArray | None = None,
        last_only: bool = False,
        **decoder_options: Any,
    ) -> npt.NDArray:
        """Return the logits of the token after each token.

        Parameters
        ----------
        ids : array of int, (batch, tokens)
        caches : sequence of Cache, optional
            From `new_caches`: the ids are those behind the tokens in them, and join them.
        lengths : array of int, (batch,), optional
            Tokens that are real in each row.
        last_only : bool
            Only those after the last real token of each row, which spares the head's product. They
            mean nothing in a row without one.
        **decoder_options
            Of the call of `Decoder`: attn_mask, num_threads.

        Returns
        -------
        ndarray, (batch, tokens, vocabulary), or (batch, vocabulary) with `last_only`

        Raises
        ------
        TypeError, ValueError
            Ids, lengths or caches of a wrong type, shape or range, or more tokens than the caches
            have room for. The caches hold what they held before.
        """
        options.flag("last_only", last_only)
        check_caches(caches, len(self.decoder.layers))
        ids = _check.token_ids("ids", ids, len(self.embedding.table))
        if ids.ndim != 2:
            raise ValueError(f"ids: expected shape (batch, tokens), got {ids.shape}")
        batch, tokens = ids.shape
        ends = options.per_batch(
            "lengths", tokens if lengths is None else lengths, (batch,), 0, tokens
        )
        past = None if caches is None else caches[0].lengths
        places = token_positions(tokens, past, lengths=None if lengths is None else ends)
        x, turn = self.embedding(ids, places), self._rotation(places)
        with restored_on_error(caches or ()):
            x = self.decoder(x, caches=caches, lengths=lengths, positions=turn, **decoder_options)
            if last_only:
                x = x[np.arange(batch), ends - 1]
            head = self.embedding.table.T if self.w_head is None else self.w_head
            return project(x, head, None, ("w_head", "b_head"))

    def _rotation(self, positions):
        """Return the turns at `positions`, or None where layers differ: each forms its own then."""
        first, *rest = (
            (each.rotary, each.w_q.shape[1] // each.heads)
            for each in (layer.self_attention for layer in self.decoder.layers)
        )
        rotary, depth = first
        if rotary is None or any(each != first for each in rest):
            return None
        return rotary.at(positions, depth)

    def generate(
        self,
        prompt_ids: Ids,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | np.random.Generator | None = None,
        stop_ids: Collection[int] | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> npt.NDArray | list[npt.NDArray]:
        """Return the tokens that follow each prompt.

        Parameters
        ----------
        prompt_ids : array of int (tokens,) or (batch, tokens), or sequence of rows of any lengths
        max_new_tokens : int
        temperature : float
            0 chooses the likeliest token; else tokens are drawn, see `Sampler`.
        top_k, top_p, seed
            As in `Sampler`.
        stop_ids : collection of int, optional
            A sequence ends with the first of these, which is part of the result. Default: those of
            the model.
        caches : sequence of Cache, optional
            From `new_caches`, to go on from: the prompts are what comes behind the tokens in them.
            Afterwards they hold these and all but the last of the new tokens; with `max_new_tokens`
            0, which computes nothing, what they held. Default: new ones.

        Returns
        -------
        ndarray of int64, (tokens,)
            Without the prompt; or a list of them, for several prompts.

        Raises
        ------
        TypeError, ValueError
            As of `stream`. The caches hold what they held before.
        """
        rows, alone = sequences("prompt_ids", prompt_ids)
        stream = self._stream(
            rows, chooser(temperature, top_k, top_p, seed), max_new_tokens, stop_ids, caches
        )
        with restored_on_error(caches or ()):
            tokens = collected(stream, len(rows))
        return tokens[0] if alone else tokens

    def stream(
        self,
        prompt_ids: Ids,
        *,
        max_new_tokens: int = 128,
        temperature: float = 0.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | np.random.Generator | None = None,
        stop_ids: Collection[int] | None = None,
        caches: Sequence[Cache] | None = None,
    ) -> Iterator[npt.NDArray]:
        """Yield the tokens that follow each prompt as they come.

        Parameters
        ----------
        prompt_ids, max_new_tokens, temperature, top_k, top_p, seed, stop_ids, caches
            As in `generate`.

        Yields
        ------
        ndarray of int64, (batch,)
            -1 for a sequence that has ended.

        Raises
        ------
        TypeError, ValueError
            Of wrong prompts, settings or caches, at once; of more tokens than the caches have room
            for, when it comes to them.
        """
        rows, _ = sequences("prompt_ids", prompt_ids)
        return self._stream(
            rows, chooser(temperature, top_k, top_p, seed), max_new_tokens, stop_ids, caches
        )

    def _stream(self, rows, choose, max_new_tokens, stop_ids, caches):
        check_caches(caches, len(self.decoder.layers))
        max_new_tokens = options.integer("max_new_tokens", max_new_tokens, 0)
        stop_ids = _check.stop_ids(self.stop_ids if stop_ids is None else stop_ids)
        for row in rows:
            _check.token_ids("prompt_ids", row, len(self.embedding.table))
        if caches is None:
            capacity = max(len(row) for row in rows) + max(max_new_tokens, 1) - 1
            caches = self.new_caches(len(rows), capacity)

        def step(ids, lengths):
            return self(ids, caches=caches, lengths=lengths, last_only=True)

        return decode(step, rows, choose, max_new_tokens=max_new_tokens, stop_ids=stop_ids)

    def complete(self, text: str, **generate_options: Any) -> str:
        """Return the text that follows a text, by the model's tokenizer.

        Parameters
        ----------
        text : str
        **generate_options
            Of `generate`.

        Returns
        -------
        str

        Raises
        ------
        TypeError, ValueError
            As of `generate`, or the model has no tokenizer.
        """
        if self.tokenizer is None:
            raise ValueError("text: expected token ids, this model has no tokenizer.json")
        ids = np.array(self.tokenizer.encode(_check.text("text", text)).ids)
        tokens = self.generate(ids, **generate_options)
        return self.tokenizer.decode(list(tokens))
