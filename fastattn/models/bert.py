# SPDX-License-Identifier: MIT
"""BERT-family encoders: token ids in, a vector for each token or for each text out."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fastattn import _check_options as options
from fastattn.layers import _check
from fastattn.layers._repr import short_repr
from fastattn.layers.batching import pack
from fastattn.layers.embedding import Embedding
from fastattn.layers.encoder import Encoder
from fastattn.layers.norms import LayerNorm
from fastattn.layers.positions import token_positions
from fastattn.layers.projections import widened
from fastattn.models.texts import own_tokenizer

POOLINGS = ("mean", "cls", "max")

# Tokens that `encode` takes at a time: their hidden layer stays in the cache, and the matrix
# products are long enough to be efficient.
BATCH_TOKENS = 1024


@dataclass(frozen=True, eq=False)
class Bert:
    """An encoder with its embeddings and its tokenizer, as `load_bert` makes it.

    Devlin et al. 2019, arXiv:1810.04805; as a text encoder: Reimers & Gurevych 2019,
    arXiv:1908.10084.

    Parameters
    ----------
    embedding : Embedding
        Of words and positions.
    embedding_norm : LayerNorm
    encoder : Encoder
    type_table : ndarray, (types, D_model), optional
        Vectors of token types (first or second text of a pair).
    first_position : int
        Position of the first token: 0, or behind the padding id (RoBERTa).
    tokenizer : tokenizers.Tokenizer, optional
        Or anything with two of its methods: ``encode_batch(texts)``, which returns objects with
        `ids` and `tokens`, and ``enable_truncation(max_length)``, which says how many at most. A
        copy is kept, and set up; the object itself only if it cannot be copied (parts of it are
        written in Python).
    max_tokens : int, optional
        Longer texts are cut by the tokenizer, which knows what to keep at the end. At most, and by
        default, as many as there are positions from `first_position` on.
    pooling : {"mean", "cls", "max"}
        From the vectors of tokens to that of the text.
    normalize : bool
        Whether the vectors of texts have length 1.
    lowercase : bool
        Whether texts are lowered before the tokenizer sees them.

    Raises
    ------
    TypeError
        A wrong type, or a tokenizer that cannot cut.
    ValueError
        A table of another shape, another pooling, or more tokens than positions.
    """

    embedding: Embedding
    embedding_norm: LayerNorm
    encoder: Encoder
    type_table: npt.NDArray | None = None
    first_position: int = 0
    tokenizer: Any = None
    max_tokens: int | None = None
    pooling: str = "mean"
    normalize: bool = True
    lowercase: bool = False

    __repr__ = short_repr

    def __post_init__(self) -> None:
        _check.instance("embedding", self.embedding, Embedding)
        _check.function("embedding_norm", self.embedding_norm)
        _check.function("encoder", self.encoder)
        _check.optional("type_table", self.type_table, (None, self.embedding.table.shape[1]))
        options.choice("pooling", self.pooling, POOLINGS)
        options.flag("normalize", self.normalize)
        options.flag("lowercase", self.lowercase)
        positions, longest = self.embedding.positions, None
        last = math.inf if positions is None else len(positions) - 1
        first = options.integer("first_position", self.first_position, 0, last)
        if positions is not None:
            longest = len(positions) - first
        if self.max_tokens is None:
            object.__setattr__(self, "max_tokens", longest)
        else:
            options.integer("max_tokens", self.max_tokens, 1, longest or math.inf)
        if self.tokenizer is not None:
            cuts = () if self.max_tokens is None else ("enable_truncation",)
            _check.methods("tokenizer", self.tokenizer, "encode_batch", *cuts)
            object.__setattr__(self, "tokenizer", own_tokenizer(self.tokenizer, self.max_tokens))

    def embed(
        self,
        ids: npt.NDArray,
        *,
        cu_seqlens: npt.NDArray | None = None,
        type_ids: npt.NDArray | None = None,
    ) -> npt.NDArray:
        """Return the input of the first layer: the normed sum of word, position and type.

        Parameters
        ----------
        ids : array of int, (batch, tokens), or (tokens,) packed by `cu_seqlens`
        cu_seqlens : array of int, (sequences + 1,), optional
        type_ids : array of int, shape of ids, optional
            (tokens,) for the same in every row. Default: 0.

        Returns
        -------
        ndarray, (..., tokens, D_model)

        Raises
        ------
        TypeError
            ids, cu_seqlens or type_ids that are no integers.
        ValueError
            Numbers that the tables do not have, more tokens than positions, `type_ids` of a model
            without types, or a shape that does not fit.
        """
        ids = _check.token_ids("ids", ids, len(self.embedding.table))
        if cu_seqlens is not None:
            cu_seqlens = _check.packing("cu_seqlens", cu_seqlens, ids.size)
        types: Any = slice(1)
        if type_ids is not None:
            if self.type_table is None:
                raise ValueError("type_ids: expected None, this model has no token types")
            types = _check.for_tokens("type_ids", type_ids, ids.shape, len(self.type_table))
        places = token_positions(ids.shape[-1], cu_seqlens=cu_seqlens) + self.first_position
        x = self.embedding(ids, places)
        if self.type_table is not None:
            x += widened(self.type_table[types], x.dtype)
        return self.embedding_norm(x)

    def __call__(
        self,
        ids: npt.NDArray,
        *,
        lengths: npt.NDArray | None = None,
        cu_seqlens: npt.NDArray | None = None,
        type_ids: npt.NDArray | None = None,
        **encoder_options: Any,
    ) -> Any:
        """Return the last hidden state of each token.

        Parameters
        ----------
        ids : array of int, (batch, tokens), or (tokens,) packed by `cu_seqlens`
        lengths : array of int, (batch,), optional
            Tokens that are real in each row; rows of the result behind them mean nothing.
        cu_seqlens : array of int, (sequences + 1,), optional
            Sequences end to end, which is faster than padded: nothing is computed in vain.
        type_ids : array of int, shape of ids, optional
        **encoder_options
            Of the call of `Encoder`: need_weights, attention, num_threads, attn_mask.

        Returns
        -------
        ndarray, (..., tokens, D_model)
            And the attention pattern of each layer, with `need_weights`.

        Raises
        ------
        TypeError, ValueError
            As of `embed`, or of the call of `MultiHeadAttention`.
        """
        x = self.embed(ids, cu_seqlens=cu_seqlens, type_ids=type_ids)
        return self.encoder(x, lengths=lengths, cu_seqlens=cu_seqlens, **encoder_options)

    def tokenize(self, texts: Sequence[str]) -> list[npt.NDArray]:
        """Return the token ids of each text, cut to `max_tokens`.

        Parameters
        ----------
        texts : sequence of str

        Returns
        -------
        list of ndarray of int64, (tokens,)

        Raises
        ------
        TypeError
            One str instead of a sequence, or anything else.
        ValueError
            The model has no tokenizer.
        """
        return [np.array(each.ids, np.int64) for each in self._encodings(texts)]

    def encode(
        self,
        texts: str | Sequence[str],
        *,
        batch_tokens: int = BATCH_TOKENS,
        **encoder_options: Any,
    ) -> npt.NDArray:
        """Return one vector for each text.

        Texts are packed end to end, none is padded.

        Parameters
        ----------
        texts : str or sequence of str
        batch_tokens : int
            Texts are taken together up to about so many tokens: memory against calls.
        **encoder_options
            Of the call of `Encoder`: attention, num_threads.

        Returns
        -------
        ndarray, (texts, D_model), or (D_model,) for one str
            float32 (float64 for a float64 model), of length 1 with `normalize`.

        Raises
        ------
        TypeError, ValueError
            As of `tokenize`, or `batch_tokens` below 1.
        """
        alone = isinstance(texts, str)
        rows = self.tokenize([texts] if isinstance(texts, str) else texts)
        parts = []
        for group in _groups(rows, batch_tokens):
            ids, cu_seqlens = pack(group)
            hidden = self(ids, cu_seqlens=cu_seqlens, **encoder_options)
            parts.append(self.pool(hidden, cu_seqlens))
        width = self.embedding.table.shape[1]
        vectors = np.concatenate([np.empty((0, width), self.embedding.dtype), *parts])
        return vectors[0] if alone else vectors

    def pool(self, hidden: npt.NDArray, cu_seqlens: npt.NDArray) -> npt.NDArray:
        """Return the vectors of texts from those of their tokens.

        Parameters
        ----------
        hidden : ndarray, (tokens, D_model)
            Packed.
        cu_seqlens : array of int, (texts + 1,)
            At least one token in each text.

        Returns
        -------
        ndarray, (texts, D_model)

        Raises
        ------
        TypeError
            hidden is neither float32 nor float64, or cu_seqlens not of integers.
        ValueError
            cu_seqlens does not cut hidden into texts of at least one token.
        """
        hidden = _check.tokens("hidden", hidden)
        if hidden.ndim != 2:
            raise ValueError(f"hidden: expected shape (tokens, D_model), got {hidden.shape}")
        cu_seqlens = _check.packing("cu_seqlens", cu_seqlens, len(hidden))
        begins, sizes = cu_seqlens[:-1], np.diff(cu_seqlens)
        if (sizes < 1).any():
            raise ValueError(f"cu_seqlens: expected at least one token in each text, got {sizes}")
        if self.pooling == "cls":
            vectors = hidden[begins]
        elif self.pooling == "max":
            vectors = np.maximum.reduceat(hidden, begins)
        else:
            vectors = np.add.reduceat(hidden, begins) / sizes[:, None].astype(hidden.dtype)
        if self.normalize:
            vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors

    def patterns(self, text: str) -> tuple[list[str], npt.NDArray]:
        """Return what each token of a text took from each other: the attention patterns.

        Parameters
        ----------
        text : str

        Returns
        -------
        tokens : list of str
        weights : ndarray, (layers, heads, tokens, tokens)
            Row i is what token i took; it sums to 1.

        Raises
        ------
        TypeError
            No str.
        ValueError
            The model has no tokenizer.
        """
        [encoding] = self._encodings([_check.text("text", text)])
        _, patterns = self(np.array([encoding.ids]), need_weights=True)
        return list(encoding.tokens), np.stack([each[0] for each in patterns])

    def _encodings(self, texts):
        if self.tokenizer is None:
            raise ValueError("texts: expected token ids, this model has no tokenizer.json")
        if isinstance(texts, str):
            raise TypeError("texts: expected a sequence of str, got a str")
        try:
            listed = list(texts)
        except TypeError:
            found = options.described(texts)
            raise TypeError(f"texts: expected a sequence of str, got {found}") from None
        for index, text in enumerate(listed):
            _check.text(f"texts[{index}]", text)
        if self.lowercase:
            listed = [text.lower() for text in listed]
        return self.tokenizer.encode_batch(listed)


def _groups(rows, batch_tokens) -> Iterator[list[npt.NDArray]]:
    """Yield consecutive sequences, together at most `batch_tokens` tokens, or one alone."""
    batch_tokens = options.integer("batch_tokens", batch_tokens, 1)
    group: list[npt.NDArray] = []
    size = 0
    for row in rows:
        if group and size + len(row) > batch_tokens:
            yield group
            group, size = [], 0
        group.append(row)
        size += len(row)
    if group:
        yield group
