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

__version__: str

def install(*, replace: bool = False) -> None: ...
def uninstall() -> None: ...
