# SPDX-License-Identifier: MIT
"""What both caches have in common: the arrays, what may be appended, and files."""

import abc
import copy
import math
import os
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, Literal, Self, cast

import numpy as np

from fastattn import _aligned as aligned
from fastattn import _check_dtypes as dtypes
from fastattn import _check_options as options
from fastattn import _check_tensors as tensors
from fastattn.caches import files
from fastattn.caches.state import ARRAYS, check_held, check_present, storage_dtype
from fastattn.quantize import quantized

Array = np.ndarray[Any, Any]
Result = Array | tuple[Array, Array]
Int = int | np.integer[Any]
Indices = Int | Sequence[Int] | Array
DType = np.dtype[Any] | type | str
FilePath = str | os.PathLike[str]

MOST = options.LARGEST_OFFSET
# What shows or describes the arrays, and is made of them again in a copy.
VIEWS = ("k", "v", "k_scale", "v_scale", "layout", "_targets", "_directory")
# What attend takes from the cache, so that a caller cannot give it.
OWN_OPTIONS = ("layout", "block_table", "k_scale", "v_scale", "cu_seqlens_k")
# Types of appended tensors that a cache of a type can hold: its own, or wider ones.
WIDER = {
    name: tuple(
        float_type
        for float_type in dtypes.FLOATS
        if float_type == name or name in dtypes.NARROWER[float_type]
    )
    for name in dtypes.WIDTHS
}


class Cache(abc.ABC):
    """Keys and values (rows, heads, tokens, depth), and their scales if they are narrow.

    Attributes
    ----------
    k, v : ndarray
        In the layout of the cache; all of its room, whatever stands in it.
    k_scale, v_scale : ndarray or None
        float32 (rows, heads, tokens) in both layouts, for int8 and fp8.
    layout : {"bhsd", "bshd"}
    """

    k: Array
    v: Array
    k_scale: Array | None
    v_scale: Array | None
    layout: Literal["bhsd", "bshd"]

    _AXES: ClassVar[tuple[str, ...]]  # what the axes (rows, heads, tokens, depth) are called
    _BOOKKEEPING: ClassVar[tuple[str, ...]]  # names of what `_bookkeeping` returns
    _directory: Any = None  # path of the files, if changes go to them

    @classmethod
    def memmap(cls, path: FilePath, *sizes: Int | None, **keywords: Any) -> Self:
        """Make an empty cache whose arrays are files: for contexts larger than memory.

        Parameters
        ----------
        path : path
            A directory, new or empty. `flush` completes its files, ``load(path, "r+")`` goes on
            with them.
        *sizes, **keywords
            As of the class itself.

        Raises
        ------
        FileExistsError
            There is something in the directory. Otherwise as of the class itself.
        """
        cache = cls.__new__(cls)
        cache._directory = options.path("path", path).absolute()  # wherever the process goes
        cls.__init__(cache, *sizes, **keywords)
        cache.flush()
        return cache

    def _create(self, sizes, value_depth, dtype, layout):
        """Make arrays of the sizes (rows, kv_heads, tokens, depth), given by name."""
        dtype = dtypes.named(dtype)
        layout = options.choice("layout", layout, options.LAYOUTS)
        sizes = {name: options.integer(name, size, 1, MOST) for name, size in sizes.items()}
        rows, heads, tokens, depth = sizes.values()
        if value_depth is not None:
            value_depth = options.integer("value_depth", value_depth, 1, MOST)
        if rows * heads * tokens * max(depth, value_depth or depth) > options.MOST_NUMBERS:
            names, given = ", ".join([*sizes, "value_depth"]), (*sizes.values(), value_depth)
            raise ValueError(f"{names}: expected arrays of less than 2^60 numbers, got {given}")
        lead = (rows, tokens, heads) if layout == "bshd" else (rows, heads, tokens)
        stored = storage_dtype(dtype)
        shapes = {"k": ((*lead, depth), stored), "v": ((*lead, value_depth or depth), stored)}
        if dtype.name in dtypes.NARROW:
            shapes |= dict.fromkeys(("k_scale", "v_scale"), ((rows, heads, tokens), np.float32))
        if self._directory is None:
            arrays = {name: aligned.zeros(*each) for name, each in shapes.items()}
        else:
            arrays = files.map_new(self._directory, shapes)
        self._adopt(arrays, dtype, layout)

    def _adopt(self, arrays, dtype, layout):
        """Take arrays as the cache's own, without copying them."""
        self._arrays = {name: np.asanyarray(arrays[name]) for name in ARRAYS if name in arrays}
        for name in ("k", "v"):  # a state may have them of the type itself, which no file can hold
            self._arrays[name] = self._arrays[name].view(storage_dtype(dtype))
        views = {name: np.asarray(array) for name, array in self._arrays.items()}
        self.k, self.v = views["k"].view(dtype), views["v"].view(dtype)
        self.k_scale, self.v_scale = views.get("k_scale"), views.get("v_scale")
        self.layout = layout
        bshd = layout == "bshd"
        self._targets = [tensors.logical(self.k, bshd), tensors.logical(self.v, bshd)]
        if self.k_scale is not None:
            self._targets += [self.k_scale, self.v_scale]

    def __repr__(self) -> str:
        sizes = dict(zip(self._AXES, self._targets[0].shape, strict=True))
        facts = {
            **sizes, "value_depth": self.v.shape[-1], "dtype": self.dtype.name,
            "layout": self.layout, "lengths": reprlib.repr(self._all_lengths()),
        }  # fmt: skip
        listed = ", ".join(f"{name}={value}" for name, value in facts.items())
        return f"<{type(self).__name__} {listed}>"

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the stored keys and values."""
        return self.k.dtype

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays, used or not; most systems give memory only to what was written."""
        return sum(array.nbytes for array in self._arrays.values())

    def _sources(self, k, v, packed=False):
        """Check tensors that are to be appended, all but their numbers.

        Parameters
        ----------
        k, v : ndarray
            (rows, heads, tokens, depth) in the layout, or (tokens, heads, depth) if `packed`.

        Returns
        -------
        list of ndarray
            k and v in logical order, for `_stored`; without rows if packed.
        """
        for name in self._arrays:
            if not getattr(self, name).flags.writeable:
                raise ValueError(
                    f"{name}: expected a cache that can be written, got one that is read-only"
                )
        bshd = packed or self.layout == "bshd"
        heads = self._targets[0].shape[1]
        rank = 3 if packed else 4
        accepted = WIDER[self.dtype.name]
        given = []
        for name, tensor, depth in ("k", k, self.k.shape[-1]), ("v", v, self.v.shape[-1]):
            tensor = options.array(name, tensor)
            if dtypes.supported(tensor.dtype) not in accepted:
                raise TypeError(
                    f"{name}: expected dtype {dtypes.listed(accepted)} for a cache of "
                    f"{self.dtype.name}, got {dtypes.dtype_name(tensor.dtype)}"
                )
            view = tensors.logical(tensor, bshd) if tensor.ndim == rank else tensor
            if tensor.ndim != rank or view.shape[-3] != heads or view.shape[-1] != depth:
                axes = f"tokens, {heads}" if bshd else f"{heads}, tokens"
                axes = axes if packed else f"sequences, {axes}"
                raise ValueError(
                    f"{name}: expected shape ({axes}, {depth}), got shape {tensor.shape}"
                )
            given.append(view)
        if given[0].shape[:-1] != given[1].shape[:-1]:
            raise ValueError(f"v: expected tokens like k of shape {k.shape}, got shape {v.shape}")
        return given

    def _stored(self, sources, counts=None):
        """Return sources as what `self._targets` are to hold; raises for NaN in narrow types.

        Of row b the first counts[b] tokens are looked at, or all.
        """
        if counts is not None and any(source.dtype != self.dtype for source in sources):
            # The others may be anything, also what does not fit into the type.
            padding = np.arange(sources[0].shape[2]) >= np.asarray(counts)[:, None]
            sources = [
                np.where(padding[:, None, :, None], source.dtype.type(0), source)
                for source in sources
            ]
        if self.k_scale is None:
            return [source.astype(self.dtype, copy=False) for source in sources]
        pairs = [
            quantized(name, source, self.dtype, "token", False)
            for name, source in zip("kv", sources, strict=True)
        ]
        return [stored for stored, _ in pairs] + [scale for _, scale in pairs]

    def _check_heads(self, q, packed=False):
        """Refuse queries of heads or of a depth that the cache has no keys for."""
        shape = getattr(q, "shape", None)
        if not isinstance(shape, tuple) or (packed and len(shape) != 3):
            return
        _, kv_heads, _, depth = self._targets[0].shape
        heads = shape[-2 if packed or self.layout == "bshd" else -3] if len(shape) > 2 else 1
        if shape[-1:] != (depth,) or heads % kv_heads:
            raise ValueError(
                f"q: expected depth {depth} and a multiple of {kv_heads} heads for this cache, got "
                f"shape {tuple(shape)}"
            )

    def _attend_options(self, given, lengths):
        """Return the options of attend, with what the cache gives itself."""
        for name in OWN_OPTIONS:
            if name in given:
                raise ValueError(
                    f"{name}: expected none, as the cache gives its own, got an argument"
                )
        if given.get("kv_lengths") is not None:
            lengths = shorter("kv_lengths", given["kv_lengths"], lengths)
        scales = {"k_scale": self.k_scale, "v_scale": self.v_scale}
        return {**given, **scales, "kv_lengths": lengths}

    @abc.abstractmethod
    def _all_lengths(self) -> list[int] | dict[int, int]:
        """Return the tokens of every sequence."""

    @abc.abstractmethod
    def _bookkeeping(self) -> dict[str, Array]:
        """Return what there is beside keys and values, as arrays."""

    @abc.abstractmethod
    def _restore(self, arrays: Mapping[str, Array]) -> None:
        """Take over what `_bookkeeping` returned."""

    # ---- copies ----------------------------------------------------------------------------------

    def __getstate__(self):
        """Return what pickle and copy take: without views, which they would part from the arrays.

        Nor is a copy tied to files: it is in memory.
        """
        kept = {name: value for name, value in vars(self).items() if name not in VIEWS}
        kept["_arrays"] = {name: np.asarray(array) for name, array in self._arrays.items()}
        return kept, self.dtype.name, self.layout

    def __setstate__(self, state):
        kept, dtype, layout = state
        vars(self).update(kept)
        # pickle gives arrays that begin anywhere, and of some buffers ones that are read-only
        arrays = {name: aligned.at_line(array) for name, array in self._arrays.items()}
        self._adopt(arrays, dtypes.named(dtype), layout)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        kept, *described = self.__getstate__()
        arrays = {name: aligned.copy(array) for name, array in kept.pop("_arrays").items()}
        made = type(self).__new__(type(self))
        made.__setstate__((copy.deepcopy(kept, memo) | {"_arrays": arrays}, *described))
        return made

    def __copy__(self) -> Self:
        """Return a cache of its own, as `copy.copy` of an array does.

        With common arrays and lengths of its own, either would write over the other's tokens.
        """
        return copy.deepcopy(self)

    # ---- files -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Array]:
        """Return everything as a dict of arrays, which ``numpy.savez(file, **state)`` can save.

        Returns
        -------
        dict of str to ndarray
            The arrays of the cache themselves, not copies. Those of a type of `ml_dtypes` are
            viewed as unsigned integers; "dtype" tells the name.
        """
        return self._arrays | self._words() | self._bookkeeping()

    @classmethod
    def from_state(cls, arrays: Mapping[str, Array]) -> Self:
        """Make a cache of what `state` returned, and of the same arrays.

        Parameters
        ----------
        arrays : mapping of str to ndarray
            A loaded file will do.

        Raises
        ------
        TypeError, ValueError
            Of arrays that are not there, or do not go with their dtype and layout or each other.
        """
        kind = str(options.mapping("arrays", arrays).get("kind", "something else"))
        if kind != cls.__name__:
            raise ValueError(f"arrays: expected the state of a {cls.__name__}, got {kind}")
        check_present(arrays, ("dtype", "layout", *cls._BOOKKEEPING))
        dtype = dtypes.named(str(arrays["dtype"]))
        layout = options.choice("layout", str(arrays["layout"]), options.LAYOUTS)
        names = ARRAYS if dtype.name in dtypes.NARROW else ARRAYS[:2]
        check_present(arrays, names)
        held = {name: arrays[name] for name in names}
        check_held(held, dtype, layout == "bshd")
        cache = cls.__new__(cls)
        cache._adopt(held, dtype, layout)
        cache._restore(arrays)
        return cache

    def save(self, file: FilePath | BinaryIO) -> None:
        """Write everything to one file of the kind of numpy.savez, under the name as it is given.

        Data lies at multiples of 64 bytes in it, so that `load` can map it.

        Parameters
        ----------
        file : path or binary file object
        """
        files.save_aligned(file, self.state())

    @classmethod
    def load(
        cls, file: FilePath | BinaryIO, mmap_mode: Literal["r", "c", "r+"] | None = None
    ) -> Self:
        """Read what `save` wrote, or a directory that `memmap` made.

        Parameters
        ----------
        file : path, or binary file object without `mmap_mode`
        mmap_mode : {None, "r", "c", "r+"}
            None reads into memory. "r" maps keys and values to be read only, "c" with changes that
            stay in memory, "r+" (directories alone) with changes that go to the files.

        Raises
        ------
        FileNotFoundError
            There is no such file.
        TypeError, ValueError
            It holds something else, or cannot be mapped so.
        """
        cache = cls.from_state(files.load(file, mmap_mode))
        if mmap_mode == "r+":
            cache._directory = Path(cast(FilePath, file)).absolute()  # no other can be mapped so
        return cache

    def flush(self) -> None:
        """Write a cache that `memmap` made, lengths included, to its files.

        Raises
        ------
        ValueError
            Its changes go to no files.
        """
        if self._directory is None:
            raise ValueError("flush: expected a cache that is mapped to be written, got another")
        for array in self._arrays.values():
            array.flush()
        files.save_aligned(self._directory / files.STATE, self._words() | self._bookkeeping())

    def _words(self):
        """Kind, type and layout as arrays."""
        words = {"kind": type(self).__name__, "dtype": self.dtype.name, "layout": self.layout}
        return {name: np.array(word) for name, word in words.items()}


def shorter(name, value, lengths, most=MOST):
    """Return lengths to take of sequences: no tokens that a sequence lacks, up to `most` of any."""
    asked = options.per_batch(name, value, lengths.shape, 0, most)
    over = np.flatnonzero(asked > lengths)
    if over.size:
        b = over[0]
        raise ValueError(
            f"{name}: expected at most the {lengths[b]} tokens of sequence {b}, got {asked[b]}"
        )
    return asked


def check_sequences(q, counts, expected):
    """Refuse queries of another number of sequences than one of `counts`.

    `attention` would speak of the arguments that it gets from the cache.
    """
    shape = getattr(q, "shape", None)
    if isinstance(shape, tuple) and math.prod(shape[:-3]) not in counts:
        raise ValueError(f"q: expected {expected}, got shape {tuple(shape)}")
