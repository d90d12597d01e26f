# SPDX-License-Identifier: MIT
"""`scaled_dot_product_attention` of the oracle."""

import numpy as np

from fastattn.reference.dense import attention


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """`attention` with the names and the meaning of torch.nn.functional.

    Parameters
    ----------
    query, key, value : ndarray, (..., H, S, D)
        All axes before the last two broadcast.
    attn_mask : ndarray, optional
        bool (True = attend) or float. Not together with `is_causal`.
    dropout_p : float
        Must be 0.
    is_causal : bool
        Query i attends to keys j <= i, however many keys there are: aligned at the top left.
    scale : float, optional
        1 / sqrt(D) if None.
    enable_gqa : bool
        Allow heads of key, and of value, that divide those of query.

    Returns
    -------
    ndarray, (..., H, S, Dv)

    Raises
    ------
    NotImplementedError
        Dropout.
    ValueError
        A mask together with `is_causal`, or other numbers of heads without `enable_gqa`.
    """
    if dropout_p != 0.0:
        raise NotImplementedError(f"dropout_p: expected 0.0, got {dropout_p}")
    if is_causal and attn_mask is not None:
        raise ValueError("attn_mask: expected None with is_causal=True, got both")
    query, key, value = (np.asarray(tensor) for tensor in (query, key, value))
    if query.ndim == 2 and max(key.ndim, value.ndim) > 2:
        query = query[None]
    if not enable_gqa and query.ndim > 2:
        try:
            [heads] = np.broadcast_shapes(*(t.shape[-3:-2] for t in (query, key, value)))
        except ValueError:
            raise ValueError("heads of query, key, value differ without enable_gqa") from None
        query = np.broadcast_to(query, (*query.shape[:-3], heads, *query.shape[-2:]))
    return attention(
        query, key, value, attn_mask=attn_mask, causal=is_causal, scale=scale, q_offset=0
    )
