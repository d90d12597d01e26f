# SPDX-License-Identifier: MIT
"""`scaled_dot_product_attention` of the oracle."""

import numpy as np

from fastattn.reference.dense import attention


def scaled_dot_product_attention(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """`attention` with the names and the meaning of torch.nn.functional.

    `is_causal` is aligned at the top left (query i attends to keys j <= i, however many keys there
    are) and excludes `attn_mask`. All axes before the last two broadcast; grouped heads need
    `enable_gqa`. There is no dropout.
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
