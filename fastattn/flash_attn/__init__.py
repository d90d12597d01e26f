# SPDX-License-Identifier: MIT
"""The functions of flash-attn (https://github.com/Dao-AILab/flash-attention, 2.8) on the CPU.

The same names, arguments, shapes and return values, on tensors of torch and on NumPy arrays, in
float32 and float64 too, with any head dimension and any page size. Where flash-attn takes arguments
that only steer a GPU (`deterministic`, `num_splits`, `max_seqlen_q`), so do these, and ignore them:
results are deterministic and do not depend on how keys are split.

Differences: a row without keys has the log-sum-exp -inf (+inf there), and there is neither dropout
nor, yet, a backward.
"""

import importlib
import importlib.util
import sys

from fastattn.flash_attn.flash_attn_interface import (
    flash_attn_func,
    flash_attn_kvpacked_func,
    flash_attn_qkvpacked_func,
    flash_attn_varlen_func,
    flash_attn_varlen_kvpacked_func,
    flash_attn_varlen_qkvpacked_func,
    flash_attn_with_kvcache,
)

__all__ = [
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
    "install",
    "uninstall",
]

__version__ = "2.8.4"  # of flash-attn, whose interface this is: programs ask for it

_MODULES = ("", ".flash_attn_interface", ".bert_padding")


def install(*, replace=False):
    """Let ``import flash_attn`` find this package, for models that insist on it. Needs torch.

    There are ``flash_attn``, ``flash_attn.flash_attn_interface`` and ``flash_attn.bert_padding``.

    Parameters
    ----------
    replace : bool
        Do so even where flash-attn itself is installed.

    Raises
    ------
    ImportError
        flash-attn is installed, or torch is not.
    """
    if sys.modules.get("flash_attn") is sys.modules[__name__]:
        return
    if not replace and importlib.util.find_spec("flash_attn") is not None:
        raise ImportError(
            "flash_attn: expected no package of this name, got one that is installed "
            "(install(replace=True) goes before it)"
        )
    ours = {name: importlib.import_module(__name__ + name) for name in _MODULES}
    for name in [name for name in sys.modules if name.partition(".")[0] == "flash_attn"]:
        del sys.modules[name]
    sys.modules.update({f"flash_attn{name}": module for name, module in ours.items()})


def uninstall():
    """Undo `install`: what is imported later is what is installed."""
    for name in _MODULES:
        module = sys.modules.get(f"flash_attn{name}")
        if module is not None and module is sys.modules.get(__name__ + name):
            del sys.modules[f"flash_attn{name}"]
