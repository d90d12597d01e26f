# SPDX-License-Identifier: MIT
"""flash_attn.bert_padding: tokens of a padded batch packed one behind the other, and back again."""

import torch


def index_first_axis(input, indices):
    """Take rows of a tensor.

    Parameters
    ----------
    input : Tensor, (rows, ...)
    indices : Tensor of int, (tokens,)

    Returns
    -------
    Tensor, (tokens, ...)
        A copy.
    """
    return input[indices]


def index_put_first_axis(values, indices, first_axis_dim):
    """Put values into the rows of a tensor that is zero elsewhere.

    Parameters
    ----------
    values : Tensor, (tokens, ...)
    indices : Tensor of int, (tokens,)
        The row of each.
    first_axis_dim : int
        Number of rows.

    Returns
    -------
    Tensor, (first_axis_dim, ...)
    """
    return values.new_zeros((first_axis_dim, *values.shape[1:])).index_copy(0, indices, values)


def unpad_input(hidden_states, attention_mask, unused_mask=None):
    """Pack the tokens that a mask attends to.

    Parameters
    ----------
    hidden_states : Tensor, (B, S, ...)
    attention_mask : Tensor, (B, S)
        bool or 0 and 1.
    unused_mask : Tensor, (B, S), optional
        1 at tokens that are packed too, but not counted as used.

    Returns
    -------
    hidden_states : Tensor, (tokens, ...)
    indices : Tensor, (tokens,)
        Where each token was in the flattened batch.
    cu_seqlens : Tensor, (B + 1,)
        int32: where each sequence begins, and the end.
    max_seqlen_in_batch : int
    seqused : Tensor, (B,)
        int32: tokens of each sequence that `attention_mask` attends to.
    """
    used = attention_mask.bool()
    packed = used if unused_mask is None else used | unused_mask.bool()
    lengths = packed.sum(1, dtype=torch.int32)
    cu_seqlens = torch.nn.functional.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0))
    indices = packed.flatten().nonzero()[:, 0]
    longest = int(lengths.max()) if len(lengths) else 0
    tokens = index_first_axis(hidden_states.flatten(0, 1), indices)
    return tokens, indices, cu_seqlens, longest, used.sum(1, dtype=torch.int32)


def pad_input(hidden_states, indices, batch, seqlen):
    """Undo `unpad_input`.

    Parameters
    ----------
    hidden_states : Tensor, (tokens, ...)
    indices : Tensor of int, (tokens,)
        As `unpad_input` returned them.
    batch, seqlen : int

    Returns
    -------
    Tensor, (batch, seqlen, ...)
        Zeros where nothing was packed.
    """
    padded = index_put_first_axis(hidden_states, indices, batch * seqlen)
    return padded.unflatten(0, (batch, seqlen))
