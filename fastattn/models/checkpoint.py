# SPDX-License-Identifier: MIT
"""A folder as Hugging Face lays it out: config.json, and tensors in safetensors files.

Tensors are views of the memory-mapped files: nothing is read before it is used, and what several
processes use is in memory once. (The NumPy reader of the package safetensors copies every tensor,
hence the few lines here. Format: huggingface/safetensors, README, "Format".)
"""

import math
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fastattn import _check_dtypes as dtypes
from fastattn import _check_options as options
from fastattn._extras import needed
from fastattn.layers import _check
from fastattn.layers.projections import widened
from fastattn.models.settings import REQUIRED, of_kind, parsed, read_json, setting

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
COUNTS = ("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8", "BOOL")
# The format allows no longer header.
LONGEST_HEADER = 100_000_000


class Checkpoint:
    """The configuration and the tensors of a model.

    Parameters
    ----------
    directory : path
        With config.json, and model.safetensors or model.safetensors.index.json and its shards.
    dtype : {float32, float64}, optional
        What tensors are converted to, once, in memory. Default: as stored, memory-mapped.

    Raises
    ------
    FileNotFoundError
        A file is missing: which.
    ImportError
        bfloat16 tensors without ml_dtypes.
    TypeError
        Another dtype, or no path.
    ValueError
        A file is damaged: which, and where; or two files have the same tensor.
    """

    def __init__(self, directory: str | Path, dtype: npt.DTypeLike | None = None) -> None:
        self.directory = options.path("directory", directory)
        self.dtype = None if dtype is None else dtypes.named(dtype, ("float32", "float64"))
        self.config = read_json(self.directory / "config.json")
        self._tensors: dict[str, npt.NDArray] = {}
        origin: dict[str, Path] = {}
        for path in self._files():
            tensors = map_safetensors(path)
            for name in tensors:
                if origin.setdefault(name, path) is not path:
                    raise ValueError(f"{name}: expected in one file, got {origin[name]} and {path}")
            self._tensors |= tensors
        self._unused = set(self._tensors)

    def _files(self):
        index = self.directory / INDEX
        if index.exists():
            shards = setting(index, read_json(index), "weight_map", kind=dict)
            names = {of_kind(f"{index}: {tensor}", name, str) for tensor, name in shards.items()}
            return [self.directory / name for name in sorted(names)]
        path = self.directory / WEIGHTS
        if path.exists():
            return [path]
        pickled = sorted(self.directory.glob("pytorch_model*.bin"))
        hint = f" ({pickled[0].name} is a pickle: convert it to safetensors)" if pickled else ""
        raise FileNotFoundError(f"{self.directory}: expected {WEIGHTS} or {INDEX}{hint}")

    def __repr__(self) -> str:
        dtype = "as stored" if self.dtype is None else self.dtype.name
        return f"<Checkpoint {self.directory}, {len(self._tensors)} tensors, {dtype}>"

    def value(
        self,
        *names: str,
        kind: type | None = None,
        least: float = -math.inf,
        default: Any = REQUIRED,
    ) -> Any:
        """Return the value of the first of these names that config.json has, not null.

        Parameters
        ----------
        *names : str
        kind : {bool, int, float, str, list, dict}, optional
            What the value must be. Default: anything.
        least : float
            A number must not be below it.
        default : optional
            If it has none of them; without a default that is an error.

        Returns
        -------
        object

        Raises
        ------
        TypeError
            A name that is no str.
        ValueError
            It has none of them, or a value of another kind or out of range.
        """
        where = "config.json"
        for name in names:
            _check.text("names", name)
        return setting(where, self.config, *names, kind=kind, least=least, default=default)

    def supported(self, name: str, known: Sequence[Any], default: Any = REQUIRED) -> Any:
        """Return the value of a name in config.json, if it is one that is known.

        Parameters
        ----------
        name : str
        known : sequence
            The values that are accepted.
        default : optional
            If there is no such name; without a default that is an error.

        Returns
        -------
        object, one of `known`

        Raises
        ------
        ValueError
            It has another value, or none.
        """
        found = self.value(name, default=default)
        if found not in known:
            listed = ", ".join(str(each) for each in known)
            raise ValueError(f"config.json: {name}: expected one of {listed}, got {found}")
        return found

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def tensor(self, name: str, *shape: int) -> npt.NDArray:
        """Return a tensor, and count it as used.

        Parameters
        ----------
        name : str
        *shape : int
            The shape that it must have.

        Returns
        -------
        ndarray, of `shape`
            As stored, a read-only view of the file, or a copy of type `dtype`.

        Raises
        ------
        TypeError
            `name` is no str.
        ValueError
            It is missing, or of another shape.
        """
        if _check.text("name", name) not in self._tensors:
            raise ValueError(
                f"{name}: expected a tensor of shape {shape} in {self.directory}, there is none"
            )
        tensor = self._tensors[name]
        if tensor.shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {tensor.shape}")
        self._unused.discard(name)
        return tensor if self.dtype is None else widened(tensor, self.dtype)

    def weight(self, name: str, outputs: int, inputs: int) -> npt.NDArray:
        """Return ``name.weight``, the weight of a linear layer, in the order of `linear`.

        Parameters
        ----------
        name : str
        outputs, inputs : int
            Features; the tensor is stored (outputs, inputs).

        Returns
        -------
        ndarray, (inputs, outputs)
            A transposed view of what `tensor` returns.

        Raises
        ------
        TypeError, ValueError
            As of `tensor`.
        """
        return self.tensor(_check.text("name", name) + ".weight", outputs, inputs).T

    def expect_used(self, prefix: str, *ignored: str) -> None:
        """Raise if a tensor whose name starts with `prefix` was never asked for.

        It would belong to a part of the model that is not computed here.

        Parameters
        ----------
        prefix : str
        *ignored : str
            Ends of the names of tensors that do not matter.

        Raises
        ------
        TypeError
            A prefix or an end that is no str.
        ValueError
            There is such a tensor: which.
        """
        _check.text("prefix", prefix)
        for end in ignored:
            _check.text("ignored", end)
        for name in sorted(self._unused):
            if name.startswith(prefix) and not name.endswith(ignored):
                raise ValueError(f"{name}: expected no such tensor in a model of this kind")


def map_safetensors(path: Path) -> dict[str, npt.NDArray]:
    """Return the tensors of a safetensors file, read-only views of the mapped file.

    Tensors of integers and booleans (token positions and masks that some files carry) are left out.

    Raises
    ------
    ValueError
        The file is damaged, or has tensors of a type that is not known here.
    """
    data = np.memmap(path, np.uint8, mode="r") if path.stat().st_size else np.empty(0, np.uint8)
    size = struct.unpack("<Q", data[:8].tobytes())[0] if len(data) >= 8 else -1
    if not 0 <= size <= min(len(data) - 8, LONGEST_HEADER):
        raise ValueError(f"{path}: expected a safetensors file, its header does not fit")
    header = parsed(f"{path}: header", data[8 : 8 + size].tobytes())
    content = data[8 + size :].view(np.ndarray)
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        if of_kind(f"{path}: {name}", entry, dict).get("dtype") not in COUNTS:
            tensors[name] = _tensor(path, name, entry, content)
    return tensors


def _tensor(path, name, entry, content):
    where = f"{path}: {name}"
    stored = setting(where, entry, "dtype", kind=str)
    if stored not in DTYPES:
        known = ", ".join(DTYPES)
        raise ValueError(f"{where}: expected dtype {known}, got {stored}")
    dtype = _stored_dtype(DTYPES[stored])
    shape, offsets = _integers(where, entry, "shape"), _integers(where, entry, "data_offsets")
    if len(offsets) != 2:
        raise ValueError(f"{where}: data_offsets: expected a pair, got {offsets}")
    begin, end = offsets
    size = math.prod(shape) * dtype.itemsize
    if end - begin != size:
        raise ValueError(f"{where}: expected {size} bytes, got {begin} to {end}")
    if end > len(content):  # cut off, as by a download that broke off
        found = path.stat().st_size
        least = found + end - len(content)
        raise ValueError(f"{where}: expected a file of at least {least} bytes, got {found}")
    tensor = content[begin:end]
    if tensor.ctypes.data % dtype.itemsize:
        tensor = tensor.copy()  # an old file without padding behind its header
    try:
        return tensor.view(dtype).reshape(shape)
    except (OverflowError, ValueError):  # too many axes, or none of its elements but a huge axis
        raise ValueError(f"{where}: expected a shape of an array, got {shape}") from None


def _integers(where, entry, name):
    """Return a list of integers that are not negative."""
    values = setting(where, entry, name, kind=list)
    return [of_kind(f"{where}: {name}", each, int, 0) for each in values]


def _stored_dtype(name):
    dtype = dtypes.named(name)
    return dtype if name == "bfloat16" else dtype.newbyteorder("<")  # which it does not have


def load_tokenizer(directory: Path) -> Any:
    """Return the tokenizer of tokenizer.json, a ``tokenizers.Tokenizer``, or None without one.

    Raises
    ------
    ImportError
        There is one, but not the package tokenizers.
    ValueError
        The file is damaged.
    """
    path = directory / "tokenizer.json"
    if not path.exists():
        return None
    with needed("tokenizer.json"):
        import tokenizers
    try:
        return tokenizers.Tokenizer.from_file(str(path))
    except Exception as error:  # what the package raises is no kind of its own
        raise ValueError(f"{path}: expected a tokenizer, {error}") from None


def divisor(checkpoint: Checkpoint, name: str, whole: int, default: Any = REQUIRED) -> int:
    """Return a value of config.json that must divide `whole`: into so many heads, say."""
    found = checkpoint.value(name, kind=int, least=1, default=default)
    if whole % found:
        raise ValueError(f"config.json: {name}: expected a divisor of {whole}, got {found}")
    return found
