# SPDX-License-Identifier: MIT
"""Arrays of a cache in files: what numpy.savez writes, but fit to be memory-mapped.

Types of ml_dtypes are stored as unsigned integers of the same width, which every reader of .npy
files knows; the name of the type is an array beside them.
"""

import contextlib
import errno
import io
import os
import secrets
import shutil
import struct
import zipfile
from pathlib import Path

import numpy as np

from fastattn import _aligned as aligned
from fastattn import _check_options as options

STATE = "state.npz"
ALIGNMENT = 64
# A zip file allows fields of any kind before the data; this one holds zeros, as in zipalign.
PADDING_FIELD = 0xD935
# What is read at a time: a zip file's stream makes a copy of all that it is asked for.
PIECE = 1 << 20
LOCAL_HEADER, ZIP64_FIELD, FIELD_HEADER = 30, 20, 4


def save_aligned(file, arrays):
    """Write arrays as numpy.savez does, each one's data at a multiple of 64 bytes.

    Parameters
    ----------
    file : path or binary file object
        Named as it is; no ".npz" is added. A file of this name is replaced once the new one is
        complete: the arrays may be mapped from it.
    arrays : dict of str to ndarray
    """
    if _is_path(file, "write"):
        with _replacing(Path(file)) as opened:
            save_aligned(opened, arrays)
        return
    with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")
            header = LOCAL_HEADER + len(member.filename) + FIELD_HEADER + ZIP64_FIELD
            padding = -(file.tell() + header) % ALIGNMENT
            member.extra = struct.pack("<HH", PADDING_FIELD, padding) + bytes(padding)
            with archive.open(member, "w", force_zip64=True) as target:
                np.lib.format.write_array(target, np.asanyarray(array), allow_pickle=False)


def _is_path(file, method):
    """Say whether `file` is a path; raise if it is no binary file object with `method` either."""
    if isinstance(file, str | os.PathLike):
        return True
    if not hasattr(file, method) or isinstance(file, io.TextIOBase):
        found = options.described(file)
        raise TypeError(f"file: expected a path or a binary file object, got {found}")
    return False


@contextlib.contextmanager
def _replacing(path):
    """Open a file to be written that takes the place of `path` where the block ends well."""
    path = path.resolve()  # what a link points to is replaced, not the link
    if path.exists() and not path.is_file():  # a device, say, which is nothing to put a file upon
        with open(path, "wb") as file:
            yield file
        return
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with open(beside, "xb") as file:
            yield file
        if path.exists():
            shutil.copymode(path, beside)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def load(file, mmap_mode=None):
    """Return the arrays of a file of `save_aligned` or numpy.savez, or of a directory.

    Parameters
    ----------
    file : path, or binary file object without `mmap_mode`
        A directory holds the arrays that `map_new` made.
    mmap_mode : {None, "r", "c", "r+"}
        Read everything, or map it: to be read only, with changes that stay in memory, or with
        changes that go to the files of a directory.
    """
    if mmap_mode is not None and str(mmap_mode) not in ("r", "c", "r+"):
        raise ValueError(f"mmap_mode: expected None, 'r', 'c' or 'r+', got {mmap_mode!r}")
    named = _is_path(file, "read")
    if mmap_mode is not None and not named:
        raise ValueError(f"mmap_mode: expected None for a file object, got {mmap_mode!r}")
    if named and Path(file).is_dir():
        arrays = load(Path(file, STATE))
        for path in sorted(Path(file).glob("*.npy")):
            with _undamaged(path):
                arrays[path.stem] = _array(path, mmap_mode)
        return arrays
    if mmap_mode == "r+":
        raise ValueError(
            "mmap_mode: expected 'r' or 'c' for a single file, whose checksums would not hold, got "
            "'r+' (a directory made by memmap can be written to)"
        )
    with _archive(file) as archive:
        arrays = {} if mmap_mode is None else _mapped(file, mmap_mode)
        with _undamaged(file):
            for member in archive.zip.namelist():
                name = member.removesuffix(".npy")
                if name not in arrays and name != member:
                    with archive.zip.open(member) as stream:
                        arrays[name] = _read(stream)
            return arrays


def _array(path, mmap_mode):
    """Read or map a .npy file."""
    if mmap_mode is not None:
        return np.load(path, mmap_mode=mmap_mode)
    with open(path, "rb") as stream:
        return _read(stream)


def _read(stream):
    """Return the array of an open .npy file, in memory that begins at a line of the cache."""
    shape, fortran, dtype = _header(stream)
    array = aligned.zeros(shape[::-1] if fortran else shape, dtype)
    rest = memoryview(array.reshape(-1).view(np.uint8))
    while rest:
        size = stream.readinto(rest[:PIECE])
        if not size:
            raise EOFError("an array that is cut off")
        rest = rest[size:]
    return array.T if fortran else array


def _header(stream):
    """Return shape, whether in Fortran's order, and dtype of an open .npy file."""
    version = np.lib.format.read_magic(stream)
    found = getattr(np.lib.format, f"read_array_header_{version[0]}_0")(stream)
    if found[2].hasobject:  # numpy.memmap would take the bytes of the file for pointers
        raise ValueError("a pickle")
    return found


def _archive(file):
    """Open what `load` reads, a zip file: NumPy takes anything else for an array or a pickle."""
    with _undamaged(file):
        archive = np.load(file)
        if not isinstance(archive, np.lib.npyio.NpzFile):
            raise ValueError("an array by itself")
    return archive


@contextlib.contextmanager
def _undamaged(file):
    """Name the file that NumPy does not read in a ``with`` block; it would speak of pickles."""
    try:
        yield
    except MemoryError:
        raise
    except Exception as error:  # of bytes that are others NumPy, zipfile and zlib make anything
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # a place before the file
            raise
        expected = "one that a cache or numpy.savez saved"
        raise ValueError(f"file: expected {expected}, got {str(file)!r}") from error


def _mapped(path, mode):
    """Map the arrays of a .npz file whose data lies as it is in it; empty ones cannot be."""
    arrays = {}
    with open(path, "rb") as file, zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.compress_type != zipfile.ZIP_STORED:
                raise ValueError(f"mmap_mode: expected None for a compressed file, got {mode!r}")
            with _undamaged(path):
                file.seek(member.header_offset)
                name_size, extra_size = struct.unpack("<26xHH", file.read(LOCAL_HEADER))
                file.seek(name_size + extra_size, os.SEEK_CUR)
                shape, fortran, dtype = _header(file)
            if 0 in shape or shape == ():
                continue
            if file.tell() % dtype.alignment:
                raise ValueError(
                    f"mmap_mode: expected None for a file of numpy.savez, whose data lies at odd "
                    f"places, got {mode!r} (the cache's own save aligns it)"
                )
            order = "F" if fortran else "C"
            arrays[Path(member.filename).stem] = np.memmap(
                path, dtype, mode, file.tell(), shape, order
            )
    return arrays


def map_new(directory, shapes):
    """Make a directory of new files and return the arrays mapped to them, full of zeros.

    Parameters
    ----------
    directory : Path
        Must not exist, or be empty.
    shapes : dict of str to (tuple of int, dtype)
    """
    directory.mkdir(parents=True, exist_ok=True)
    if any(directory.iterdir()):
        raise FileExistsError(f"path: expected a new or empty directory, got {str(directory)!r}")
    paths = {name: directory / f"{name}.npy" for name in shapes}
    try:
        return {
            name: np.lib.format.open_memmap(paths[name], "w+", dtype, shape)
            for name, (shape, dtype) in shapes.items()
        }
    except BaseException:  # sizes that do not fit, say: the directory can be used again
        for path in paths.values():
            path.unlink(missing_ok=True)
        raise
