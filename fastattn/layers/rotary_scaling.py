# SPDX-License-Identifier: MIT
"""The frequencies of rotary embedding, and what stretches them beyond the trained length."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from fastattn import _check_options as options

ORIGINAL = "original_max_position_embeddings"
# rope_type: (needed keys, optional keys)
KEYS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "default": ((), ()),
    "linear": (("factor",), ()),
    "ntk": (("factor",), ()),
    "dynamic": (("factor", ORIGINAL), ()),
    "yarn": (
        ("factor", ORIGINAL),
        ("beta_fast", "beta_slow", "attention_factor", "mscale", "mscale_all_dim", "truncate"),
    ),
    "llama3": (("factor", "low_freq_factor", "high_freq_factor", ORIGINAL), ()),
}


def rotary_frequencies(
    dim: int,
    base: float = 10000.0,
    scaling: Mapping[str, Any] | None = None,
    *,
    length: int | npt.NDArray = 0,
) -> tuple[npt.NDArray, float]:
    """Return the frequency of each pair of features, and the factor of all cosines and sines.

    Unscaled, ``base^(-2i / dim)`` and 1. `scaling` names one of, with the words of Hugging Face's
    config.json for the keys (f is "factor", L "original_max_position_embeddings"):

    =========== =================================================================================
    "linear"    every frequency divided by f (Chen et al. 2023, arXiv:2306.15595)
    "ntk"       base * f^(dim / (dim - 2)), so that high frequencies hardly change (bloc97 2023)
    "dynamic"   "ntk" with factor ``f length / L - (f - 1)`` once `length` passes L (emozilla 2023)
    "yarn"      linear for slow pairs, unscaled for fast ones, a ramp between the pairs that turn
                "beta_slow" (1) and "beta_fast" (32) times in L, widened to whole pairs unless
                "truncate" (true) is false; cosines and sines grow by "attention_factor", else by
                m(mscale) / m(mscale_all_dim) if both are there, else by m(1), where
                ``m(s) = 0.1 s ln f + 1``, 1 for f <= 1 (Peng et al. 2023, arXiv:2309.00071)
    "llama3"    linear for wavelengths above ``L / low_freq_factor``, unscaled for those below
                ``L / high_freq_factor``, a ramp between (Llama 3.1)
    =========== =================================================================================

    Parameters
    ----------
    dim : int
        Features that turn, even.
    base : float
        Greater than 1.
    scaling : mapping, optional
        With the key "rope_type" (or "type") and the keys of that type.
    length : int or array of int, (...)
        Largest position + 1, of each sequence or token; "dynamic" alone looks at it. Keys in a
        cache keep the turn they got when they were shorter: a known defect of "dynamic", here as in
        other libraries.

    Returns
    -------
    frequencies : ndarray, (dim / 2,), or (..., dim / 2) of "dynamic"
        float64, in radians per position.
    factor : float

    Raises
    ------
    TypeError
        A wrong type, also of a value of `scaling`, or no "rope_type" in it.
    ValueError
        An odd `dim`, an unknown type, a missing key, a key that the type does not have, or a value
        out of range.
    """
    dim = even("dim", options.integer("dim", dim, 2, options.LARGEST_OFFSET))
    if not isinstance(length, int | np.integer) or isinstance(length, bool):
        length = options.integers("length", length, "an integer or an array of integers")
    else:
        most = options.LARGEST_OFFSET + 1  # behind the last position that there may be
        length = options.integer("length", length, -most, most)
    base = options.number("base", base)
    if base <= 1:
        raise ValueError(f"base: expected a number above 1, got {base:g}")
    kind, values = _checked(scaling)
    if kind in ("ntk", "dynamic"):
        return _powers(dim, base * _ntk_factor(dim, kind, values, length)), 1.0
    frequencies = _powers(dim, base)
    if kind == "linear":
        return frequencies / values["factor"], 1.0
    if kind == "yarn":
        return _yarn(frequencies, dim, base, values), _yarn_factor(values)
    if kind == "llama3":
        return _llama3(frequencies, values), 1.0
    return frequencies, 1.0


def even(name: str, value: int) -> int:
    """Return an integer, known to be even: features turn in pairs."""
    if value % 2:
        raise ValueError(f"{name}: expected an even number, got {value}")
    return value


def _powers(dim, base):
    return np.expand_dims(base, -1) ** -(np.arange(0, dim, 2) / dim)


def _checked(scaling):
    """Return the type of scaling and its values, all numbers known to be in range."""
    if scaling is None:
        return "default", {}
    options.mapping("scaling", scaling)
    kind = scaling.get("rope_type", scaling.get("type"))
    options.choice("scaling['rope_type']", kind, tuple(KEYS))
    needed, optional = KEYS[kind]
    values = {key: scaling[key] for key in scaling if key not in ("rope_type", "type")}
    for key in needed:
        if key not in values:
            raise ValueError(f"scaling: expected the key {key!r} with rope_type {kind!r}")
    for key, value in values.items():
        name = f"scaling[{key!r}]"
        if key not in needed and key not in optional:
            known = ", ".join(needed + optional) or "none"
            raise ValueError(f"{name}: expected one of the keys of {kind!r} ({known})")
        if key == "truncate":
            options.flag(name, value)
        elif value is not None or key in needed:
            values[key] = options.number(name, value)
            if value <= 0:
                raise ValueError(f"{name}: expected a positive number, got {value:g}")
    if kind == "llama3" and values["low_freq_factor"] >= values["high_freq_factor"]:
        raise ValueError("scaling['high_freq_factor']: expected more than low_freq_factor")
    return kind, values


def _ntk_factor(dim, kind, values, length):
    if dim == 2:  # one pair, whose frequency is 1 whatever the base
        return 1.0
    factor = values["factor"]
    if kind == "dynamic":
        original = values[ORIGINAL]
        factor = factor * np.maximum(length, original) / original - (factor - 1)
    try:
        return factor ** (dim / (dim - 2))
    except OverflowError:
        raise ValueError(f"scaling['factor']: expected a smaller number, got {factor:g}") from None


def _yarn(frequencies, dim, base, values):
    def pair_that_turns(times):
        """The (fractional) pair that turns so many times within the original length."""
        return dim * math.log(values[ORIGINAL] / (times * 2 * math.pi)) / (2 * math.log(base))

    low = pair_that_turns(values.get("beta_fast") or 32)
    high = pair_that_turns(values.get("beta_slow") or 1)
    if values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    if low == high:
        high += 0.001  # a step, as the published code makes it
    ramp = np.clip((np.arange(dim // 2) - low) / (high - low), 0, 1)
    return frequencies * (1 - ramp) + frequencies / values["factor"] * ramp


def _yarn_factor(values):
    if values.get("attention_factor") is not None:
        return values["attention_factor"]

    def growth(weight):
        return 0.1 * weight * math.log(values["factor"]) + 1 if values["factor"] > 1 else 1.0

    if values.get("mscale") and values.get("mscale_all_dim"):
        return growth(values["mscale"]) / growth(values["mscale_all_dim"])
    return growth(1.0)


def _llama3(frequencies, values):
    low, high = values["low_freq_factor"], values["high_freq_factor"]
    # How often a pair turns within the original length: few turns are slow, many are fast.
    turns = values[ORIGINAL] * frequencies / (2 * math.pi)
    share = np.clip((turns - low) / (high - low), 0, 1)
    return frequencies * share + frequencies / values["factor"] * (1 - share)
