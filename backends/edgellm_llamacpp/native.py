"""llama.cpp's shared library: import, log, models and contexts. Nothing else in this package loads or frees anything.

Handles are freed exactly once: on `close`, when the last user lets go, or at interpreter exit, contexts before the
models they read.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from edgellm.contracts.engine import ModelFile, Placement
from edgellm.errors import InsufficientMemory, LoadFailed
from edgellm.formats.gguf_types import TENSOR_TYPES
from edgellm_llamacpp.amx import forbid_amx, has_amx, sound
from edgellm_llamacpp.costs import MICRO_BATCH
from edgellm_llamacpp.exactness import EXACT_MICRO_BATCH, unsplit, untiled
from edgellm_llamacpp.mapping import forget

DRAFT_TOKENS = 15  # of one row: with the token itself a tile of the matrix units
DRAFT_OUTPUTS = 32  # of all rows of a step

_WARN, _ERROR, _CONTINUED = 3, 4, 5  # enum ggml_log_level; the binding's own table still has the old order
_TYPE_NUMBERS = {kind.name.lower(): number for number, kind in TENSOR_TYPES.items()}  # enum ggml_type
_NO_MEMORY = ("bad_alloc", "unable to allocate", "failed to allocate", "Cannot allocate memory")
_GENERIC = ("failed to load model", "failed to initialize", "failed to create context")


class NativeLog:
    """llama.cpp's log: warnings and errors are kept (the last 64 lines), errors also go to stderr.

    The library would print all of it; a screen being drawn does not survive that.
    """

    def __init__(self, api: Any) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=64)
        self._level = 0
        self._callback = api.llama_log_callback(self._write)  # C keeps the address: this object must outlive all use
        api.llama_log_set(self._callback, None)

    def clear(self) -> None:
        self._lines.clear()

    def problem(self) -> str | None:
        """The most telling recent line: the last error that says more than that something failed."""
        errors = [line for level, line in self._lines if level >= _ERROR]
        telling = [line for line in errors if not any(phrase in line for phrase in _GENERIC)]
        return _without_function((telling or errors)[-1]) if errors else None

    def short_of_memory(self) -> bool:
        """Whether an error among the recent lines is that memory could not be had."""
        return any(level >= _ERROR and phrase in line for level, line in self._lines for phrase in _NO_MEMORY)

    def _write(self, level: int, text: bytes | None, _data: object) -> None:
        if level == _CONTINUED:
            level = self._level
        self._level = level
        if level < _WARN:
            return
        line = (text or b"").decode("utf-8", "replace").rstrip()
        if line:
            self._lines.append((level, line))
            if level >= _ERROR and sys.stderr is not None:
                sys.stderr.write(f"llama.cpp: {line}\n")


class Library:
    """The binding (`api`) with its log tamed and its backends initialised.

    repacks     weights may be rearranged for the CPU's widest instructions
    """

    def __init__(self) -> None:
        self.api = import_binding()
        self.log = NativeLog(self.api)
        self.api.llama_backend_init()
        self.repacks = not has_amx(self.api) or sound(self.api) or forbid_amx(self.api)


def import_binding() -> Any:
    """The module llama_cpp. Raises ImportError when it is missing, others when its shared library does not load.

    GNU's OpenMP reads its settings when it is loaded. By default a thread that waits for the others spins for
    milliseconds, hundreds of times per step; where another program wants that core, a step of 12 ms takes 260. With a
    short spin it takes 12 and 45.

    A failed assertion ends the process. Before that ggml starts a debugger in a fork; where two threads fail at once
    each fork waits for a pipe that the other keeps open, for good, and holds memory and pipes of the process that died.
    """
    os.environ.setdefault("GGML_NO_BACKTRACE", "1")
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    import llama_cpp

    return llama_cpp


_loading = threading.Lock()


@cache
def _library() -> Library:
    return Library()


def library() -> Library:
    """The one instance of the process. Raises whatever the import raises; `probe` turns that into words."""
    with _loading:
        return _library()


class Model:
    """A model that llama.cpp opened: the whole of it, or its vocabulary only."""

    def __init__(self, lib: Library, pointer: int) -> None:
        self.pointer = pointer
        self.vocabulary: int = lib.api.llama_model_get_vocab(pointer)
        self._finalizer = weakref.finalize(self, _free_model, lib.api, pointer)


def _free_model(api: Any, pointer: int) -> None:
    """A vocabulary is a great many small pieces, which glibc keeps for itself unless it is told not to."""
    api.llama_model_free(pointer)
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class Vocabulary:
    """What tokenizers of a file read: of a model opened for nothing else, and of the whole one once it is there.

    Methods may be called from several threads.
    """

    def __init__(self, model: Model) -> None:
        self._model = model

    def ask(self, function: Callable[..., Any], *arguments: object) -> Any:
        """What a function of llama.cpp's says whose first argument is a vocabulary."""
        model = self._model  # held: another thread may move on meanwhile, and C reads what this one has
        return function(model.vocabulary, *arguments)

    def ask_model(self, function: Callable[..., Any], *arguments: object) -> Any:
        """The same, where the first argument is a model."""
        model = self._model
        return function(model.pointer, *arguments)

    def move(self, model: Model) -> None:
        """Read another model of the same file; the one before is freed."""
        self._model = model


class Context:
    """The KV memory and scratch of one loaded model; keeps the model alive until it is closed."""

    def __init__(self, lib: Library, model: Model, pointer: int) -> None:
        self.pointer = pointer
        self.memory: int = lib.api.llama_get_memory(pointer)
        # `model` travels with the finalizer, so that the model cannot be freed first.
        self._finalizer = weakref.finalize(self, _free_context, lib.api, pointer, model)

    def close(self) -> None:
        """Free it now; a second call does nothing."""
        self._finalizer()


def _free_context(api: Any, pointer: int, _model: Model) -> None:
    api.llama_free(pointer)


def open_vocabulary(lib: Library, path: Path) -> Model:
    """The vocabulary and metadata alone: no weights are read. Raises LoadFailed."""
    params = lib.api.llama_model_default_params()
    params.kv_overrides = _untouched_text(lib.api)
    params.vocab_only = True
    params.load_mode = lib.api.LLAMA_LOAD_MODE_MMAP
    return _open(lib, [path], params)


def open_model(lib: Library, file: ModelFile, placement: Placement, progress: Callable[[float], None]) -> Model:
    """The whole model, of one file or of all its parts, placed as told.

    Raises LoadFailed, or whatever `progress` raised (which stops the load).
    """
    api = lib.api
    raised: list[BaseException] = []

    def report(done: float, _data: object) -> bool:
        try:
            progress(min(max(done, 0.0), 1.0))
        except BaseException as error:  # must not unwind through C; raised again below
            raised.append(error)
        return not raised

    callback = api.llama_progress_callback(report)  # held here: C calls it until the load returns
    no_devices = (ctypes.c_void_p * 1)()
    params = api.llama_model_default_params()
    params.kv_overrides = _untouched_text(api)
    if placement.gpu_layers == 0:
        params.devices = ctypes.addressof(no_devices)  # an empty list; none at all would mean every GPU
    params.n_gpu_layers = placement.gpu_layers
    params.split_mode = api.LLAMA_SPLIT_MODE_LAYER
    params.main_gpu = 0
    params.load_mode = _load_mode(api, placement)
    params.vocab_only = False
    params.check_tensors = False  # whoever stored the file verified its checksum
    params.use_extra_bufts = repacks(lib, placement)
    params.progress_callback = callback
    try:
        model = _open(lib, (file.path, *file.more), params)
    except LoadFailed:
        if raised:
            raise raised[0] from None
        raise
    if params.use_extra_bufts:
        forget(file)
    return model


def repacks(lib: Library, placement: Placement) -> bool:
    """Whether weights are rearranged for the CPU's widest instructions: not where copies of them find no room."""
    return lib.repacks and not placement.spills


def max_outputs(placement: Placement) -> int:
    """Tokens of a step whose logits may be asked for: one for each sequence, and drafts beside."""
    return min(placement.batch_tokens, placement.max_sequences + DRAFT_OUTPUTS)


def decode_threads(lib: Library, placement: Placement) -> int:
    """Threads of a step of one token.

    In other builds than ours a single row's attention is cut into a piece per thread, which rounds otherwise than
    several rows do.
    """
    return 1 if placement.exact and not unsplit(lib.api) else placement.threads


def open_context(
    lib: Library, model: Model, placement: Placement, *, embeds: bool = False, alike: bool = False
) -> Context:
    """KV memory and scratch for `placement`. Every parameter that matters is set: the defaults fit one chat at a time.

    `alike`: attention of this model and KV type is the same in steps of any size, where the build has it so.
    `embeds`: vectors of whole texts are wanted, each text in one piece; how they are pooled, the file says.

    Raises LoadFailed.
    """
    api = lib.api
    params = api.llama_context_default_params()
    params.n_ctx = placement.capacity
    params.n_batch = placement.batch_tokens
    small = placement.exact and not (alike and untiled(lib.api))
    params.n_ubatch = min(placement.batch_tokens, EXACT_MICRO_BATCH if small else MICRO_BATCH)
    params.n_seq_max = placement.max_sequences
    params.n_rs_seq = 0
    # Fewer than n_seq_max aborts the process; 0 would reserve a row of logits for every token of a batch.
    params.n_outputs_max = max_outputs(placement)
    params.n_outputs_max_per_seq = 1 + DRAFT_TOKENS
    params.n_threads = decode_threads(lib, placement)
    params.n_threads_batch = placement.threads_batch
    params.ctx_type = api.LLAMA_CONTEXT_TYPE_DEFAULT
    params.rope_scaling_type = api.LLAMA_ROPE_SCALING_TYPE_UNSPECIFIED
    params.pooling_type = api.LLAMA_POOLING_TYPE_NONE
    params.attention_type = api.LLAMA_ATTENTION_TYPE_UNSPECIFIED
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_ENABLED
    params.type_k = params.type_v = _TYPE_NUMBERS[placement.kv_type]
    params.embeddings = False
    params.offload_kqv = params.op_offload = placement.gpu_layers != 0
    params.no_perf = True
    if embeds:
        params.embeddings = True
        params.pooling_type = api.LLAMA_POOLING_TYPE_UNSPECIFIED
        params.n_ubatch = params.n_outputs_max = params.n_outputs_max_per_seq = placement.batch_tokens
    # Windowed layers keep min(capacity, window x sequences + batch) cells: the same memory for small capacities,
    # less for large ones. What they forget, `reusable` sees in the lowest position still there.
    params.swa_full = False
    params.kv_unified = True  # one pool, so that forks share cells instead of copying them
    lib.log.clear()
    pointer = api.llama_init_from_model(model.pointer, params)
    if not pointer:
        raise LoadFailed(
            f"llama.cpp could not make room to run the model: {lib.log.problem() or 'it does not say why'}",
            hint="a smaller context or fewer sequences needs less memory",
        )
    context = Context(lib, model, pointer)
    if not context.memory and not embeds:
        raise LoadFailed("the model keeps no memory of a text", hint="this engine runs models that generate text")
    return context


def _untouched_text(api: Any) -> Any:
    """Header keys to read otherwise than they stand: text comes to BERT's vocabularies normalised already.

    llama.cpp's own way drops every mark that follows a letter, also the vowels of Indic scripts, and knows no Korean.
    """
    found = (api.llama_model_kv_override * 3)()  # the last one, without a key, ends the list
    for entry, key in zip(found, (b"lowercase", b"strip_accents"), strict=False):
        entry.tag, entry.key = api.LLAMA_KV_OVERRIDE_TYPE_BOOL, b"tokenizer.ggml.normalizer." + key
        entry.value.val_bool = False
    return found


def _open(lib: Library, paths: Sequence[Path], params: Any) -> Model:
    lib.log.clear()
    names = [str(path).encode("utf-8", "surrogateescape") for path in paths]
    if len(names) == 1:
        pointer = lib.api.llama_model_load_from_file(names[0], params)
    else:
        pointer = lib.api.llama_model_load_from_splits((ctypes.c_char_p * len(names))(*names), len(names), params)
    if not pointer and lib.log.short_of_memory():  # the limit of a process too, of which no plan knows
        raise InsufficientMemory(
            f"there was no memory left to load {paths[0].name}",
            hint="close other programs, or raise the limit that the daemon runs under",
        )
    if not pointer:
        raise LoadFailed(
            f"llama.cpp cannot load {paths[0].name}: {lib.log.problem() or 'it does not say why'}",
            hint="the file may be damaged, or newer than the installed llama-cpp-python: pull it again, or update that",
        )
    return Model(lib, pointer)


def _load_mode(api: Any, placement: Placement) -> int:
    mode: int
    if placement.use_mmap:
        mode = api.LLAMA_LOAD_MODE_MMAP_MLOCK if placement.use_mlock else api.LLAMA_LOAD_MODE_MMAP
    else:
        mode = api.LLAMA_LOAD_MODE_MLOCK if placement.use_mlock else api.LLAMA_LOAD_MODE_NONE
    return mode


def _without_function(line: str) -> str:
    """`llama_model_load: error loading model: bad magic` says it in its last two parts."""
    head, separator, rest = line.partition(": ")
    return rest if separator and " " not in head else line
