# SPDX-License-Identifier: MIT
"""fastattn: exact attention on CPUs, on NumPy arrays, with a C core."""

try:
    from fastattn import _core, _dlpack  # noqa: F401
except ImportError as error:
    if error.name != "fastattn":  # one that is there
        raise
    raise ImportError(
        f"fastattn: its C extensions are not in {__path__[0]}, or are for another Python. If that "
        "is the source folder, it hides the installed package: run Python with -P or from another "
        "folder; or install it: pip install . (unpacked, not in a zip file)",
        name=error.name,
        path=error.path,
    ) from error

from fastattn._core import VERSION as __version__
from fastattn.attention import (
    attention,
    attention_varlen,
    attention_weights,
    merge_states,
    scaled_dot_product_attention,
)
from fastattn.config import (
    config,
    get_cmake_dir,
    get_include,
    get_library,
    get_pkgconfig_dir,
    show_config,
)
from fastattn.isa import isa, isas, use_isa
from fastattn.quantize import quantize_kv
from fastattn.threads import get_num_threads, num_threads, set_num_threads

__all__ = [
    "KVCache",
    "PagedKVCache",
    "__version__",
    "attention",
    "attention_varlen",
    "attention_weights",
    "config",
    "get_cmake_dir",
    "get_include",
    "get_library",
    "get_num_threads",
    "get_pkgconfig_dir",
    "isa",
    "isas",
    "merge_states",
    "num_threads",
    "quantize_kv",
    "scaled_dot_product_attention",
    "set_num_threads",
    "show_config",
    "use_isa",
]

_LAZY = (
    "caches", "cli", "flash_attn", "jax", "layers", "measure", "models", "onnx", "plot",
    "reference", "torch", "transformers",
)  # fmt: skip


def __getattr__(name):
    """Parts that not every program needs, imported when first used."""
    import importlib

    if name in ("KVCache", "PagedKVCache"):
        return getattr(importlib.import_module("fastattn.caches"), name)
    if name in _LAZY:
        try:
            return importlib.import_module(f"fastattn.{name}")
        except ModuleNotFoundError as error:
            from fastattn._extras import LIBRARIES

            if error.name not in LIBRARIES:
                raise
            # What hasattr, help and inspect understand.
            message = f"module 'fastattn' has no attribute {name!r} here: {error}"
            raise AttributeError(message) from error
    raise AttributeError(f"module 'fastattn' has no attribute {name!r}")


def __dir__():
    return sorted([*__all__, *_LAZY])
