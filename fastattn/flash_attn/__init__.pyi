# SPDX-License-Identifier: MIT
from fastattn.flash_attn.flash_attn_interface import (
    flash_attn_func as flash_attn_func,
)
from fastattn.flash_attn.flash_attn_interface import (
    flash_attn_kvpacked_func as flash_attn_kvpacked_func,
)
from fastattn.flash_attn.flash_attn_interface import (
    flash_attn_qkvpacked_func as flash_attn_qkvpacked_func,
)
from fastattn.flash_attn.flash_attn_interface import (
    flash_attn_varlen_func as flash_attn_varlen_func,
)
from fastattn.flash_attn.flash_attn_interface import (
    flash_attn_varlen_kvpacked_func as flash_attn_varlen_kvpacked_func,
)
from fastattn.flash_attn.flash_attn_interface import (
    flash_attn_varlen_qkvpacked_func as flash_attn_varlen_qkvpacked_func,
)
from fastattn.flash_attn.flash_attn_interface import (
    flash_attn_with_kvcache as flash_attn_with_kvcache,
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

__version__: str

def install(*, replace: bool = False) -> None: ...
def uninstall() -> None: ...
