# SPDX-License-Identifier: MIT
"""The tokenizer that a model keeps: a copy, set up as the model needs it."""

import copy
from typing import Any


def own_tokenizer(tokenizer: Any, most: int | None) -> Any:
    """Return a copy of a tokenizer that pads no text and cuts those of more than `most` tokens.

    What files and callers have set up is of no use: ids do not tell padding from words, and a
    prompt that is cut is another prompt.

    Parameters
    ----------
    tokenizer : object
        Known to have the methods that are needed. Itself returned where it cannot be copied (parts
        of it are written in Python).
    most : int or None
        None cuts none.
    """
    try:
        own = copy.deepcopy(tokenizer)
    except Exception:  # what the package tokenizers raises is no kind of its own
        own = tokenizer
    if most is not None:
        own.enable_truncation(most)
    elif hasattr(own, "no_truncation"):
        own.no_truncation()
    if hasattr(own, "no_padding"):
        own.no_padding()
    return own
