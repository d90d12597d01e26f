# SPDX-License-Identifier: MIT
"""fastattn for Hugging Face models: ``attn_implementation="fastattn"`` after `register`."""

from fastattn._extras import needed

with needed("fastattn.transformers", "transformers"):
    from transformers import AttentionInterface, AttentionMaskInterface

    from fastattn.transformers._attention import attend
    from fastattn.transformers._masks import attention_mask

__all__ = ["attend", "attention_mask", "register"]


def register(name="fastattn"):
    """Make `name` an attention implementation of transformers, for every model loaded later.

    Then ``AutoModel.from_pretrained(..., attn_implementation="fastattn")``,
    ``model.set_attn_implementation("fastattn")`` and, for sentence-transformers,
    ``SentenceTransformer(..., model_kwargs={"attn_implementation": "fastattn"})`` work on the CPU.
    Padding on either side, causality, sliding windows, static caches and packed sequences are
    passed on as a few numbers; no (B, 1, L, S) mask is made for them, unless the model itself does
    something with its mask. For inference: backward raises, and so does dropout.

    Parameters
    ----------
    name : str

    Raises
    ------
    TypeError
        `name` is not a string.
    """
    if not isinstance(name, str):
        raise TypeError(f"name: expected a string, got {type(name).__name__}")
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, attention_mask)
