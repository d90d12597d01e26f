# SPDX-License-Identifier: MIT
"""Real models in plain NumPy, read from the files that Hugging Face writes.

`load_bert` reads text encoders, `load_llama` language models; both take a folder with config.json
and safetensors files. Nothing is downloaded, and neither torch nor transformers is needed.
"""

from fastattn.models.bert import Bert
from fastattn.models.checkpoint import Checkpoint
from fastattn.models.llama import Llama
from fastattn.models.load_bert import load_bert
from fastattn.models.load_llama import load_llama

__all__ = ["Bert", "Checkpoint", "Llama", "load_bert", "load_llama"]
