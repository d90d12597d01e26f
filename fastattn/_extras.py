# SPDX-License-Identifier: MIT
"""Libraries that only parts of the package need, and what to say where one is not installed."""

import contextlib

LIBRARIES = (
    "jax", "jaxlib", "matplotlib", "ml_dtypes", "onnx", "tokenizers", "torch", "transformers",
)  # fmt: skip


@contextlib.contextmanager
def needed(part, extra=None):
    """Say how to get one of `LIBRARIES` that a ``with`` block imports and does not find.

    Parameters
    ----------
    part : str
        What needs it.
    extra : str, optional
        The extra of this package that has it; None: the library is installed by itself.

    Raises
    ------
    ModuleNotFoundError
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in LIBRARIES:  # another one is missing, perhaps within a library
            raise
        wanted = error.name if extra is None else f"'fastattn[{extra}]'"
        message = f"{part} needs {error.name}: pip install {wanted}"
        raise ModuleNotFoundError(message, name=error.name) from error
