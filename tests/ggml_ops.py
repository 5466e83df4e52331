"""As much of ggml's interface as it takes to run one operation of llama.cpp's on a CPU: products and attention."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from ctypes import c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import numpy as np
import numpy.typing as npt
from edgellm_llamacpp.native import library

Floats = npt.NDArray[np.float32]
Halves = npt.NDArray[np.float16]
F32, F16, Q4_0, Q8_0, I32 = 0, 1, 2, 8, 26  # ggml's numbers


class _Params(ctypes.Structure):
    _fields_ = (("size", c_size_t), ("memory", c_void_p), ("no_alloc", ctypes.c_bool))


_SIGNATURES: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_backend_cpu_reg": (c_void_p, ()),
    "ggml_backend_reg_dev_get": (c_void_p, (c_void_p, c_size_t)),
    "ggml_backend_reg_get_proc_address": (c_void_p, (c_void_p, c_char_p)),
    "ggml_backend_buft_name": (c_char_p, (c_void_p,)),
    "ggml_backend_cpu_buffer_type": (c_void_p, ()),
    "ggml_backend_alloc_ctx_tensors_from_buft": (c_void_p, (c_void_p, c_void_p)),
    "ggml_backend_buffer_free": (None, (c_void_p,)),
    "ggml_backend_tensor_set": (None, (c_void_p, c_void_p, c_size_t, c_size_t)),
    "ggml_backend_tensor_get": (None, (c_void_p, c_void_p, c_size_t, c_size_t)),
    "ggml_backend_cpu_init": (c_void_p, ()),
    "ggml_backend_cpu_set_n_threads": (None, (c_void_p, c_int)),
    "ggml_backend_graph_compute": (c_int, (c_void_p, c_void_p)),
    "ggml_backend_free": (None, (c_void_p,)),
    "ggml_init": (c_void_p, (_Params,)),
    "ggml_free": (None, (c_void_p,)),
    "ggml_new_tensor_2d": (c_void_p, (c_void_p, c_int, c_int64, c_int64)),
    "ggml_new_tensor_4d": (c_void_p, (c_void_p, c_int, c_int64, c_int64, c_int64, c_int64)),
    "ggml_permute": (c_void_p, (c_void_p, c_void_p, c_int, c_int, c_int, c_int)),
    "ggml_flash_attn_ext": (c_void_p, (c_void_p, *[c_void_p] * 4, c_float, c_float, c_float)),
    "ggml_mul_mat": (c_void_p, (c_void_p, c_void_p, c_void_p)),
    "ggml_mul_mat_id": (c_void_p, (c_void_p, *[c_void_p] * 3)),
    "ggml_new_graph": (c_void_p, (c_void_p,)),
    "ggml_build_forward_expand": (None, (c_void_p, c_void_p)),
    "ggml_row_size": (c_size_t, (c_int, c_int64)),
    "ggml_quantize_chunk": (c_size_t, (c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p)),
}


class Ggml:
    """Each of these functions is a method, without its "ggml_"."""

    def __init__(self) -> None:
        library = self._library = ctypes.CDLL(_path())
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments
            setattr(self, name.removeprefix("ggml_"), function)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def rearranging(self) -> int:
        """The kind of buffer whose matrices are rearranged."""
        registry = self.backend_cpu_reg()
        address = self.backend_reg_get_proc_address(registry, b"ggml_backend_dev_get_extra_bufts")
        kinds = ctypes.CFUNCTYPE(ctypes.POINTER(c_void_p), c_void_p)(address)(self.backend_reg_dev_get(registry, 0))
        index = 0
        while kinds[index]:
            if self.backend_buft_name(kinds[index]) == b"CPU_REPACK":
                return int(kinds[index])
            index += 1
        raise AssertionError("no such buffer")

    def quantised(self, kind: int, weights: Floats) -> npt.NDArray[np.uint8]:
        rows, width = weights.shape
        out = np.zeros((rows, self.row_size(kind, width)), np.uint8)
        self.quantize_chunk(kind, weights.ctypes.data, out.ctypes.data, 0, rows, width, None)
        return out

    def product(self, kind: int, matrix: npt.NDArray[np.uint8], x: Floats, threads: int) -> Floats:
        """x [inputs, width] times the rows of a rearranged matrix: [inputs, rows]."""
        with self._rearranged(kind, matrix[None], x.shape[-1]) as weights:
            context = self.init(_Params(1 << 20, None, True))
            given = self.new_tensor_2d(context, F32, x.shape[-1], len(x))
            made = self.mul_mat(context, weights, given)
            return self._run(context, made, [(given, x)], (len(x), len(matrix)), threads)

    def routed(
        self, kind: int, matrices: npt.NDArray[np.uint8], x: Floats, experts: npt.NDArray[np.int32], threads: int
    ) -> Floats:
        """Each input times the rows of its experts' matrices: [inputs, used, rows].

        matrices [experts, rows, bytes]; x [inputs, used or 1, width]; experts [inputs, used].
        """
        (inputs, columns, width), used = x.shape, experts.shape[1]
        with self._rearranged(kind, matrices, width) as weights:
            context = self.init(_Params(1 << 20, None, True))
            given = self.new_tensor_4d(context, F32, width, columns, inputs, 1)
            ids = self.new_tensor_2d(context, I32, used, inputs)
            made = self.mul_mat_id(context, weights, given, ids)
            return self._run(context, made, [(given, x), (ids, experts)], (inputs, used, matrices.shape[1]), threads)

    @contextmanager
    def _rearranged(self, kind: int, matrices: npt.NDArray[np.uint8], width: int) -> Iterator[int]:
        """A tensor of these weights, which are [experts, rows, bytes]."""
        held = self.init(_Params(1 << 20, None, True))
        weights = self.new_tensor_4d(held, kind, width, matrices.shape[1], matrices.shape[0], 1)
        buffer = self.backend_alloc_ctx_tensors_from_buft(held, self.rearranging())
        self.backend_tensor_set(weights, matrices.ctypes.data, 0, matrices.nbytes)
        yield int(weights)
        self.backend_buffer_free(buffer)
        self.free(held)

    def attention(self, q: Floats, k: Halves, v: Halves, mask: Halves, threads: int, kind: int = F16) -> Floats:
        """[rows, heads, value], of q [rows, heads, key], k [cells, key heads, key], v [cells, key heads, value].

        mask [rows, cells] is added to the scores. `kind`: how keys and values are stored.
        """
        context = self.init(_Params(1 << 20, None, True))

        def tensor(kind: int, array: npt.NDArray[Any]) -> int:
            sizes = list(reversed(array.shape))
            return int(self.new_tensor_4d(context, kind, *sizes, *[1] * (4 - len(sizes))))

        tensors = [tensor(F32, q), tensor(kind, k), tensor(kind, v), tensor(F16, mask)]
        turned = [self.permute(context, each, 0, 2, 1, 3) for each in tensors[:3]]
        made = self.flash_attn_ext(context, *turned, tensors[3], q.shape[-1] ** -0.5, 0.0, 0.0)
        arrays: list[npt.NDArray[Any]] = [q, k, v, mask]
        if kind != F16:
            arrays[1:3] = [self.quantised(kind, each.reshape(-1, each.shape[-1]).astype(np.float32)) for each in (k, v)]
        given = list(zip(tensors, arrays, strict=True))
        return self._run(context, made, given, (*q.shape[:2], v.shape[-1]), threads)

    def _run(
        self,
        context: int,
        made: int,
        given: Sequence[tuple[int, npt.NDArray[Any]]],
        shape: tuple[int, ...],
        threads: int,
    ) -> Floats:
        """Compute one tensor. Frees the context."""
        graph = self.new_graph(context)
        self.build_forward_expand(graph, made)
        buffer = self.backend_alloc_ctx_tensors_from_buft(context, self.backend_cpu_buffer_type())
        for tensor, array in given:
            self.backend_tensor_set(tensor, array.ctypes.data, 0, array.nbytes)
        backend = self.backend_cpu_init()
        self.backend_cpu_set_n_threads(backend, threads)
        assert self.backend_graph_compute(backend, graph) == 0
        out = np.zeros(shape, np.float32)
        self.backend_tensor_get(made, out.ctypes.data, 0, out.nbytes)
        self.backend_free(backend)
        self.backend_buffer_free(buffer)
        self.free(context)
        return out


def _path() -> str:
    return str(library().api.llama_cpp._lib._name)
