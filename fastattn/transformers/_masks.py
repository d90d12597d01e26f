# SPDX-License-Identifier: MIT
"""The mask of a Hugging Face model as a few numbers for each batch entry.

A model asks for its mask once for all layers, hands it to each layer as it is, and the layer to
`attend`. But some slice the mask on the way, flip it or add it to a bias. So what a model gets is a
`CompactMask`: to `attend` a few options, to everybody else the table (B, 1, L, S) of bool that
transformers' own ``sdpa_mask`` makes, made when somebody looks at it.

There are tables at once where the pattern is not known here, for what is traced (a graph cannot
look at numbers), and where the model asks for one (``allow_is_causal_skip``), as it does for one
query before a static cache, whose step may be compiled.
"""

import dataclasses
import functools
import re
import sys

import torch
from torch.utils._pytree import tree_map_only
from transformers import masking_utils
from transformers.masking_utils import sdpa_mask
from transformers.utils.import_utils import is_tracing

# What is known of a table that has not been made, and what adds it to scores or to a bias.
METADATA = {
    *(getattr(torch.Tensor, name).__get__ for name in ("shape", "ndim", "dtype")),
    torch.Tensor.size, torch.Tensor.stride, torch.Tensor.dim, torch.Tensor.is_floating_point,
}  # fmt: skip
ADDITIONS = {"add", "add_", "__add__", "__radd__", "__iadd__"}


class CompactMask(torch.Tensor):
    """A table of bool that is made only where something other than `attend` is done with it.

    Its memory is on the device "meta": what gets past ``__torch_function__`` fails.
    """

    @classmethod
    def of(cls, shape, options, source, rows=slice(None)):
        """The mask that `options` say to `attention`, and `rows` of the table of `source`."""
        mask = torch.empty(shape, dtype=torch.bool, device="meta").as_subclass(cls)
        mask.options, mask.source, mask.rows = options, source, rows
        return mask

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.__getitem__ and isinstance(args[0], cls):
            rows = args[0].queries(args[1])
            if rows is not None:
                return rows
        if function not in METADATA:
            dtype = torch.bool
            if function.__name__ in ADDITIONS:
                dtype = next((each.dtype for each in args if _is_floating(each)), dtype)
            args, kwargs = tree_map_only(cls, lambda mask: mask.table(dtype), (args, kwargs or {}))
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **(kwargs or {}))

    def table(self, dtype=torch.bool):
        """The whole table; of a floating `dtype` what is added to scores, as 'eager' has it."""
        table = self.source()[:, :, self.rows]
        if dtype == torch.bool:
            return table
        return torch.zeros(table.shape, dtype=dtype).masked_fill(~table, torch.finfo(dtype).min)

    @property
    def touched(self):
        """Whether there is a table, which may have been written to: then it is what counts."""
        return self.source.cache_info().currsize > 0

    def queries(self, index):
        """The mask of the queries that `index` keeps; None where it does anything else."""
        whole = slice(None)
        if not isinstance(index, tuple) or [type(each) for each in index] != [slice] * 4:
            return None
        if (self.rows, *index[:2], index[3]) != (whole,) * 4:
            return None
        batch, heads, queries, keys = self.shape
        first, stop, step = index[2].indices(queries)
        if step != 1 or "q_offset" not in self.options:
            return self if (first, stop, step) == (0, queries, 1) else None
        options = self.options | {"q_offset": self.options["q_offset"] + first}
        shape = batch, heads, max(stop - first, 0), keys
        return CompactMask.of(shape, options, self.source, slice(first, stop))


def _is_floating(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


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

    Parameters
    ----------
    batch_size, q_length, kv_length : int
        Sizes of the table, (B, 1, L, S).
    q_offset, kv_offset : int or Tensor
        Position of the first query and of the first key.
    mask_function : callable
        ``mask_function(b, h, i, j)`` says whether query i sees key j, both counted as positions.
    attention_mask : Tensor, (B, keys), optional
        bool: False at padding.
    allow_is_causal_skip, allow_is_bidirectional_skip : bool
        False, both of them: the model asks for a table.
    config : PreTrainedConfig, optional
        Of the model.
    cache_position : Tensor, (L,), optional
        Positions of the queries, in place of `q_length` and `q_offset` (transformers up to 5.3).
    **options
        Of ``sdpa_mask``.

    Returns
    -------
    CompactMask or Tensor
        See above. Never None, which would leave it to a flag of the layer whether it is causal: a
        Llama made bidirectional by its configuration keeps the flag.
    """
    traced = is_tracing(attention_mask)
    if not traced:  # now: they may be tensors that a cache counts up, layer by layer
        q_offset, kv_offset = int(q_offset), int(kv_offset)
    queries = {"q_length": q_length, "q_offset": q_offset}
    if cache_position is not None:  # transformers up to 5.3
        queries, q_length = {"cache_position": cache_position}, len(cache_position)
    table = functools.partial(
        sdpa_mask, batch_size=batch_size, **queries, kv_length=kv_length, kv_offset=kv_offset,
        mask_function=mask_function, attention_mask=attention_mask, allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False, **options,
    )  # fmt: skip
    if traced:
        return table()
    refuse_models_that_add_masks(type(config))
    pattern, says = pattern_of(mask_function), None
    if pattern is not None and pattern.sequences is not None:
        if attention_mask is None and q_length == kv_length:
            says = _packed(pattern)
    elif pattern is not None and (allow_is_causal_skip or allow_is_bidirectional_skip):
        first = q_offset if cache_position is None else int(cache_position[0])
        says = _ranges(pattern, attention_mask, kv_length, first - kv_offset, kv_offset)
    if says is None:
        return table()
    shape = batch_size, 1, q_length, kv_length
    return CompactMask.of(shape, says, functools.cache(table))


def _ranges(pattern, tokens, kv_length, offset, kv_offset):
    """The mask as options of `attention`: ranges of keys, or a table of one row where padding has
    holes. None where that is not enough."""
    options = {"causal": True} if pattern.right == 0 else {}
    if pattern.left >= 0:
        options["window_size"] = pattern.left, pattern.right
    options["q_offset"] = offset
    if tokens is None:
        return options
    visible = tokens[:, kv_offset:]  # more or fewer than there are keys: cut, or False
    visible = torch.nn.functional.pad(visible, (0, kv_length - visible.shape[1]))
    begin, end, contiguous = _runs(visible)
    if not contiguous and max(pattern.left, pattern.right) >= 0:
        return None
    if not contiguous:
        return {"attn_mask": visible[:, None, None, :]}
    if begin.any() or (end != kv_length).any():
        options |= {"kv_starts": begin.numpy(), "kv_lengths": end.numpy()}
    return options


def _runs(visible):
    """Begin and end of the visible keys of each row, and whether each row has no holes."""
    length = visible.shape[1]
    counts = visible.sum(1)
    numbers = visible.to(torch.uint8)
    begin, end = numbers.argmax(1), length - numbers.flip(1).argmax(1)
    end = torch.where(counts > 0, end, 0)
    return begin, end, bool((end - begin == counts).all())


def _packed(pattern):
    """The mask as options of `attention_varlen`, None where a sequence may lie in several parts."""
    ids = pattern.sequences
    batch, length = ids.shape
    if (ids[:, 1:] < ids[:, :-1]).any():
        return None
    # A row begins a sequence, whatever the row before it ended with.
    first = torch.ones(batch, 1, dtype=torch.bool)
    begins = torch.cat([first, ids[:, 1:] != ids[:, :-1]], 1).flatten().nonzero()[:, 0]
    bounds = torch.cat([begins, torch.tensor([batch * length])])
    return {"cu_seqlens_q": bounds.numpy(), "window_size": (pattern.left, pattern.right)}


def decode(mask, queries, keys, dense=False):
    """A mask as options of `attention` or `attention_varlen`; the latter has ``cu_seqlens_q``.

    Options that say what is so anyway for so many queries and keys are left out. A `dense` call
    has a bias or wants weights, which there are not for packed sequences: they get a table.
    """
    packed = "cu_seqlens_q" in mask.options
    if mask.touched or mask.shape[2:] != (queries, keys) or (dense and packed):
        return {"attn_mask": mask.table()}
    options = dict(mask.options)
    if "kv_lengths" not in options and options.get("q_offset") == keys - queries:
        del options["q_offset"]
    return {} if options.keys() == {"q_offset"} else options


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
    closure = getattr(function, "__closure__", None)
    if not closure or function.__module__ != masking_utils.__name__:
        return None
    cells = (cell.cell_contents for cell in closure)
    known = dict(zip(function.__code__.co_freevars, cells, strict=True))
    match function.__qualname__.partition(".")[0], known:
        case "and_masks", {"mask_functions": parts}:
            return _all(pattern_of(part) for part in parts)
        case "sliding_window_overlay", {"sliding_window": width} if width > 0:
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
