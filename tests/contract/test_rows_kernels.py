"""Our kernels inside llama.cpp (`kernels/ggml/`): what they compute, to float32, and that inputs keep to themselves."""

from __future__ import annotations

import ctypes
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import gguf
import numpy as np
import numpy.typing as npt
import pytest
from edgellm_llamacpp.native import library
from edgellm_llamacpp.repacking import cpu_flags, own_kernels

KINDS = ("Q4_0", "Q4_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
INPUTS = (1, 2, 3, 4, 7, 8, 15, 70)  # every size of the groups that are taken at once, and more than one part
Floats = npt.NDArray[np.float32]

pytestmark = pytest.mark.skipif("avx2" not in cpu_flags(), reason="kernels for x86 CPUs with AVX2")


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
    "ggml_mul_mat": (c_void_p, (c_void_p, c_void_p, c_void_p)),
    "ggml_new_graph": (c_void_p, (c_void_p,)),
    "ggml_build_forward_expand": (None, (c_void_p, c_void_p)),
    "ggml_row_size": (c_size_t, (c_int, c_int64)),
    "ggml_quantize_chunk": (c_size_t, (c_int, c_void_p, c_void_p, c_int64, c_int64, c_int64, c_void_p)),
}


class Ggml:
    """As much of ggml's interface as one product takes."""

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
        inputs, width = x.shape
        contexts = [self.init(_Params(1 << 20, None, True)) for _ in range(2)]
        backend = self.backend_cpu_init()
        self.backend_cpu_set_n_threads(backend, threads)
        weights = self.new_tensor_2d(contexts[0], kind, width, len(matrix))
        held = [self.backend_alloc_ctx_tensors_from_buft(contexts[0], self.rearranging())]
        self.backend_tensor_set(weights, matrix.ctypes.data, 0, matrix.nbytes)
        given = self.new_tensor_2d(contexts[1], 0, width, inputs)
        made = self.mul_mat(contexts[1], weights, given)
        graph = self.new_graph(contexts[1])
        self.build_forward_expand(graph, made)
        held.append(self.backend_alloc_ctx_tensors_from_buft(contexts[1], self.backend_cpu_buffer_type()))
        self.backend_tensor_set(given, x.ctypes.data, 0, x.nbytes)
        assert self.backend_graph_compute(backend, graph) == 0
        out = np.zeros((inputs, len(matrix)), np.float32)
        self.backend_tensor_get(made, out.ctypes.data, 0, out.nbytes)
        for buffer in held:
            self.backend_buffer_free(buffer)
        for context in contexts:
            self.free(context)
        self.backend_free(backend)
        return out


def _path() -> str:
    return str(library().api.llama_cpp._lib._name)


@pytest.fixture(scope="module")
def ggml() -> Ggml:
    assert own_kernels(), "this build of llama.cpp lacks edgellm's kernels: run `make setup`"
    return Ggml()


def rounded(x: Floats) -> npt.NDArray[np.float64]:
    """What the kernels see of their inputs: eight bits, a scale for each 32."""
    blocks = x.reshape(*x.shape[:-1], -1, 32)
    most = np.abs(blocks).max(-1, keepdims=True)
    scale = np.divide(np.float32(127), most, out=np.zeros_like(most), where=most > 0)
    codes = np.rint(blocks * scale).astype(np.float64)
    products: npt.NDArray[np.float64] = codes * (most / np.float32(127))
    return products.reshape(x.shape)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "width"), [(16, 256), (48, 768), (192, 1536)])
def test_products(ggml: Ggml, kind: str, rows: int, width: int) -> None:
    random = np.random.default_rng(rows)
    number = gguf.GGMLQuantizationType[kind]
    matrix = ggml.quantised(number, random.standard_normal((rows, width), np.float32))
    exact = gguf.dequantize(matrix, number).astype(np.float64)
    x = random.standard_normal((max(INPUTS), width), np.float32) * np.float32(3)
    x[1, 32:96] = 0  # a block of nothing
    x[2] *= np.float32(1e-30)
    x[3] *= np.float32(1e20)
    alone = ggml.product(number, matrix, x[:1], threads=1)
    for count in INPUTS:
        made = ggml.product(number, matrix, x[:count], threads=1 + count % 2)
        expected = rounded(x[:count]) @ exact.T
        scale = np.abs(rounded(x[:count])) @ np.abs(exact).T
        assert (np.abs(made - expected) <= 2e-6 * scale).all()
        assert (made[:1] == alone).all()
        for at in range(count - count % 5, count):
            assert (made[at] == ggml.product(number, matrix, x[at : at + 1], threads=2)[0]).all()
