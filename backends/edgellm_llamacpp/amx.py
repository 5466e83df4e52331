"""Intel's AMX tiles: several times faster prompts where a build is sound, a crash at the first prompt where it is not.

Seen with llama.cpp 0.5 built by GCC 12.2 on a Sapphire Rapids host, and reported for official builds: the tile
configuration is written to the stack and loaded by an intrinsic of which older compilers believe that it reads eight
bytes (GCC PR 114098); the other stores are optimised away, and `ldtilecfg` faults on what is left. Nothing short of
running it shows whether a build is sound; so a canary process runs it first, once per build. Without AMX, weights are
repacked for AVX-512 instead.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from typing import Any

from edgellm.contracts.engine import ModelFile
from edgellm_llamacpp.builds import ask

_CPU = 0  # enum ggml_backend_dev_type


def has_amx(api: Any) -> bool:
    """Whether this build would use AMX on this machine."""
    return b"AMX_INT8 = 1" in api.llama_print_system_info()


def sound(api: Any) -> bool:
    """Whether this build's AMX code works."""
    return ask(api, "amx") is not None


def forbid_amx(api: Any) -> bool:
    """Take AMX off the list of buffer types that weights are offered; False where that list cannot be reached."""
    return _filter(api) is not None


@contextlib.contextmanager
def without_amx(api: Any) -> Iterator[None]:
    """The same while a model is loaded."""
    before = _filter(api)
    try:
        yield
    finally:
        for index, kind in enumerate(before or ()):
            _list(api)[index] = kind


def overtaxes_amx(model: ModelFile) -> bool:
    """Whether `model` has matrices that AMX takes and then cannot multiply, whereupon llama.cpp aborts: those of latent
    attention, one for each head, whose other side does not lie in rows. Seen with llama-cpp-python 0.3.36.
    """
    return any(tensor.name.endswith((".attn_k_b.weight", ".attn_v_b.weight")) for tensor in model.tensors)


def _filter(api: Any) -> list[int] | None:
    """Leave AMX out of the list; what was in it, or None where it cannot be reached.

    The list belongs to ggml's CPU backend, ends in NULL, and is read at each load.
    """
    try:
        name_of = _function(api.llama_cpp._lib.ggml_backend_buft_name, ctypes.c_char_p, ctypes.c_void_p)
        kinds = _list(api)
    except AttributeError:
        return None
    if not kinds:
        return []  # a build without special buffer types uses no AMX either
    before: list[int] = []
    while kind := kinds[len(before)]:
        before.append(kind)
    kept = [kind for kind in before if name_of(kind) != b"AMX"]
    for index in range(len(before)):
        kinds[index] = kept[index] if index < len(kept) else None
    return before


def _list(api: Any) -> Any:
    """A pointer to the buffer types, or nothing where a build has none. Raises AttributeError for another ggml."""
    lib = api.llama_cpp._lib
    device_by_type = _function(lib.ggml_backend_dev_by_type, ctypes.c_void_p, ctypes.c_int)
    registry_of = _function(lib.ggml_backend_dev_backend_reg, ctypes.c_void_p, ctypes.c_void_p)
    address_of = _function(lib.ggml_backend_reg_get_proc_address, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)
    device = device_by_type(_CPU)
    get_list = address_of(registry_of(device), b"ggml_backend_dev_get_extra_bufts")
    if not get_list:
        return None
    return ctypes.CFUNCTYPE(ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p)(get_list)(device)


def _function(symbol: Any, result: Any, *arguments: Any) -> Any:
    symbol.restype, symbol.argtypes = result, arguments
    return symbol
