# SPDX-License-Identifier: MIT
"""The mask of a Hugging Face model as a few numbers for each batch entry.

A model asks for its mask once for all layers, hands it to each layer as it is, and the layer to
`attend`. So the mask may be anything that looks like one: a tensor of four axes. Ours is one of

    ranges   (B or 1, 6, 1, 1): RANGES, first key, end of keys, position of query 0, left, right
    packed   (1, n + 4, 1, 1): PACKED, left, right, where each of n sequences begins, the end

where left and right are the window, -1 is unbounded, and causal is right = 0. Some models do take
the mask apart. Those say so (``allow_is_causal_skip``), and get the table that everybody else would
get (as does, by the same word, one query before a static cache: a row). So does a pattern that is
not known here, and what is traced: a graph cannot look at numbers.
"""

import dataclasses
import functools
import re
import sys

import torch
from transformers import masking_utils
from transformers.masking_utils import sdpa_mask
from transformers.utils.import_utils import is_tracing

# Unlikely as numbers in a table, so that a model's arithmetic on a mask of ours does not go unseen.
RANGES, PACKED = 0x66_61_72, 0x66_61_70
FIELDS = 6


@dataclasses.dataclass(frozen=True)
class Pattern:
    """Which keys a query at position p may see: p - left <= j <= p + right, in its own sequence."""

    left: int = -1
    right: int = -1
    # (B, L): which sequence each token belongs to, where there are several.
    sequences: torch.Tensor | None = None

    def __and__(self, other):
        if self.sequences is not None and other.sequences is not None:
            return None
        return Pattern(
            _narrower(self.left, other.left),
            _narrower(self.right, other.right),
            other.sequences if self.sequences is None else self.sequences,
        )


def _narrower(one, other):
    return max(one, other) if -1 in (one, other) else min(one, other)


def attention_mask(
    batch_size, q_length=None, kv_length=None, q_offset=0, kv_offset=0,
    mask_function=masking_utils.causal_mask_function, attention_mask=None,
    allow_is_causal_skip=True, allow_is_bidirectional_skip=False, config=None, cache_position=None,
    **options,
):  # fmt: skip
    """The mask function that `register` registers, called as `transformers.masking_utils` does.

    Returns
    -------
    Tensor
        Ranges, packed or a bool table, see above. Never None, which would leave it to a flag of the
        layer whether it is causal: a Llama made bidirectional by its configuration keeps the flag.
    """
    pattern = None
    if not is_tracing(attention_mask):
        refuse_models_that_add_masks(type(config))
        pattern = pattern_of(mask_function)
    if pattern is not None and pattern.sequences is not None:
        return _packed(pattern)
    if pattern is not None and (allow_is_causal_skip or allow_is_bidirectional_skip):
        first = q_offset if cache_position is None else cache_position[0]
        offset = int(first) - int(kv_offset)
        mask = _ranges(pattern, attention_mask, kv_length, offset, int(kv_offset))
        if mask is not NotImplemented:
            return mask
    queries = {"q_length": q_length, "q_offset": q_offset}
    if cache_position is not None:  # transformers up to 5.3
        queries = {"cache_position": cache_position}
    return sdpa_mask(
        batch_size=batch_size, **queries, kv_length=kv_length, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False, **options,
    )  # fmt: skip


def _ranges(pattern, tokens, kv_length, offset, kv_offset):
    """The mask as ranges. A table of one row where padding has holes, NotImplemented where that is
    not enough."""
    begin, end = torch.zeros(1, dtype=torch.int64), torch.full((1,), kv_length)
    if tokens is not None:
        visible = tokens[:, kv_offset : kv_offset + kv_length]
        begin, end, contiguous = _runs(visible)
        if not contiguous and max(pattern.left, pattern.right) >= 0:
            return NotImplemented
        if not contiguous:
            missing = kv_length - visible.shape[1]
            return torch.nn.functional.pad(visible, (0, missing))[:, None, None, :]
    mask = torch.empty(len(begin), FIELDS, dtype=torch.int64)
    mask[:, 0], mask[:, 1], mask[:, 2], mask[:, 3] = RANGES, begin, end, offset
    mask[:, 4], mask[:, 5] = pattern.left, pattern.right
    return mask[:, :, None, None]


def _runs(visible):
    """Begin and end of the visible keys of each row, and whether each row has no holes.

    One row for all where none is padded.
    """
    length = visible.shape[1]
    counts = visible.sum(1)
    if bool((counts == length).all()):
        return torch.zeros(1, dtype=torch.int64), torch.full((1,), length), True
    numbers = visible.to(torch.uint8)
    begin, end = numbers.argmax(1), length - numbers.flip(1).argmax(1)
    end = torch.where(counts > 0, end, 0)
    return begin, end, bool((end - begin == counts).all())


def _packed(pattern):
    ids = pattern.sequences
    batch, length = ids.shape
    # A row begins a sequence, whatever the row before it ended with.
    first = torch.ones(batch, 1, dtype=torch.bool)
    begins = torch.cat([first, ids[:, 1:] != ids[:, :-1]], 1).flatten().nonzero()[:, 0]
    head = torch.tensor([PACKED, pattern.left, pattern.right])
    return torch.cat([head, begins, torch.tensor([batch * length])])[None, :, None, None]


def decode(mask, queries, keys):
    """A mask as options of `attention` or `attention_varlen`; the latter has ``cu_seqlens_q``.

    Options that say what is so anyway for so many queries and keys are left out.
    """
    if mask.dtype != torch.int64 or mask.ndim != 4 or mask.shape[2:] != (1, 1):
        raise ValueError(
            "attention_mask: expected a table (B, H, L, S) of bool or float, or what the mask "
            f"function of fastattn made, got {mask.dtype} of shape {tuple(mask.shape)}"
        )
    numbers = mask[:, :, 0, 0].numpy()
    kind = numbers[0, 0]
    if kind == PACKED:
        left, right = numbers[0, 1:3].tolist()
        return {"cu_seqlens_q": numbers[0, 3:], "window_size": (left, right)}
    if kind != RANGES or numbers.shape[1] != FIELDS:
        raise ValueError(
            "attention_mask: expected what the mask function of fastattn made, got other numbers "
            "(this model takes masks apart: use attn_implementation='eager' or 'sdpa')"
        )
    offset, left, right = numbers[0, 3:].tolist()
    if len(numbers) == 1:
        begin, end = numbers[0, 1:3].tolist()
    else:
        begin, end = numbers[:, 1], numbers[:, 2]
    options = {"causal": True} if right == 0 else {}
    if left >= 0 or right > 0:
        options["window_size"] = left, right
    if len(numbers) > 1 or (begin, end) != (0, keys):
        options |= {"kv_starts": begin, "kv_lengths": end}
    if options and ("kv_lengths" in options or offset != keys - queries):
        options["q_offset"] = offset
    return options


# ---- patterns ------------------------------------------------------------------------------------


def pattern_of(function):
    """The `Pattern` of a mask function of `transformers.masking_utils`, None for any other.

    They are closures; what they closed over says what they do. Nothing is guessed: one that is not
    known by name has no pattern.
    """
    if function is masking_utils.causal_mask_function:
        return Pattern(right=0)
    if function is masking_utils.bidirectional_mask_function:
        return Pattern()
    code = getattr(function, "__code__", None)
    if code is None or function.__module__ != masking_utils.__name__ or not function.__closure__:
        return None
    cells = (cell.cell_contents for cell in function.__closure__)
    known = dict(zip(code.co_freevars, cells, strict=True))
    match function.__qualname__.partition(".")[0], known:
        case "and_masks", {"mask_functions": parts}:
            return _all(pattern_of(part) for part in parts)
        case "sliding_window_overlay", {"sliding_window": width}:
            return Pattern(left=width - 1)
        case "sliding_window_bidirectional_overlay", {"sliding_window": width}:
            return Pattern(left=width, right=width)
        case "packed_sequence_mask_function", {"packed_sequence_mask": sequences}:
            return Pattern(sequences=sequences)
        case "remap_positions_for_packed_sequence", {"mask_function": inner}:
            return pattern_of(inner)  # positions within a sequence differ as those in the pack do
    return None


def _all(patterns):
    """The pattern of keys that every one of `patterns` allows; None where one is None."""
    whole = Pattern()
    for pattern in patterns:
        if pattern is None or whole is None:
            return None
        whole &= pattern
    return whole


@functools.cache
def refuse_models_that_add_masks(config_type):
    """Raise for a model with attention code of its own, which adds masks to scores as it gets them.

    transformers lets such a model have any `attn_implementation`, and gives it that one's masks.

    Raises
    ------
    ValueError
        The model does not ask for an attention function at all.
    """
    module = sys.modules.get(config_type.__module__.replace(".configuration_", ".modeling_"))
    path = getattr(module, "__file__", None)
    if path is None or not path.endswith(".py"):
        return
    with open(path, encoding="utf-8") as file:
        source = file.read()
    attends = re.search(r"^class \w*Attention\w*\(nn\.Module\):", source, re.MULTILINE)
    if attends and "ALL_ATTENTION_FUNCTIONS" not in source:
        raise ValueError(
            f"attn_implementation: expected 'eager' for {config_type.__name__}, whose model has "
            "attention code of its own, got fastattn"
        )
