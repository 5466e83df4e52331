"""The llama.cpp engine as the app sees it. Nothing heavy is imported here: entry points are listed everywhere."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from edgellm.contracts.embedding import EmbeddingPlugin, EmbeddingRunner
from edgellm.contracts.engine import Available, CostModel, ModelFile, Placement, Tokenizer, Unavailable
from edgellm.contracts.kernels import KernelChoice, KernelReport
from edgellm.contracts.runner import TokenRunner
from edgellm.errors import LoadFailed, pip_install
from edgellm.formats.summary import makes_embeddings

if TYPE_CHECKING:
    from edgellm_llamacpp.native import Library, Model, Vocabulary

_Key = tuple[Path, int, int]  # a file: where it is, when it changed, its size

_PACKAGE = "llama-cpp-python"
_COMPILES = (
    "it compiles for some minutes and needs a C++ compiler "
    "(Debian: build-essential, macOS: xcode-select --install, Windows: Visual Studio Build Tools)"
)
_REBUILD = (
    "this build's AMX code is broken, so it is not used; prompts would be three times as fast after "
    "`CMAKE_ARGS=\"-DCMAKE_C_FLAGS='-fno-tree-dse -fno-dse' -DCMAKE_CXX_FLAGS='-fno-tree-dse -fno-dse'\" "
)
_ANEW = ("--force-reinstall", "--no-cache-dir", "--no-binary", _PACKAGE, _PACKAGE)
_REBUILD_OWN = (
    "this build lacks edgellm's kernels for x86 CPUs: answers take about three times as long, prompts four; "
    "`make` in a checkout of edgellm (tools/build_engine.py) builds it with them"
)
_REBUILD_OLD = "its kernels are not those in kernels/ggml/ any more: `make setup` in this checkout builds it anew"
_NOT_MODELS = {
    "mmproj": "it is the vision or audio part of a model; run the model it belongs to",
    "adapter": "it is an adapter; run the model it belongs to",
    "imatrix": "it is an importance matrix for quantising, not a model",
}


class LlamaCppPlugin:
    """The whole surface of the engine. Methods may be called from several threads.

    A vocabulary is part of a loaded model, and reading it takes up to half a second; so what is open is remembered,
    weakly, for as long as someone uses it. A tokenizer made after `load` shares the model's; one made beside it, on
    another thread, reads its own, as quick where a core is free, and moves to the model's once that is there.
    """

    name = "llamacpp"
    title = "llama.cpp"
    requires = ("llama_cpp",)

    def __init__(self) -> None:
        self._open: weakref.WeakValueDictionary[_Key, Model] = weakref.WeakValueDictionary()
        self._vocabularies: weakref.WeakValueDictionary[_Key, Vocabulary] = weakref.WeakValueDictionary()

    def probe(self) -> Available | Unavailable:
        from edgellm_llamacpp.amx import has_amx, sound
        from edgellm_llamacpp.native import import_binding
        from edgellm_llamacpp.repacking import cpu_flags, outdated, own_kernels

        try:
            llama_cpp = import_binding()
        except ImportError as error:
            return Unavailable(f"llama-cpp-python is not installed ({error})", _install())
        except (OSError, RuntimeError, AttributeError) as error:
            return Unavailable(f"llama-cpp-python does not work here: {error}", f"reinstall it: {_install()}")
        features = llama_cpp.llama_print_system_info().decode("utf-8", "replace")
        hint = f"{_REBUILD}{pip_install(*_ANEW)}`" if has_amx(llama_cpp) and not sound(llama_cpp) else ""
        if not hint and "avx2" in cpu_flags() and not own_kernels():
            hint = _REBUILD_OWN
        if not hint and outdated():
            hint = _REBUILD_OLD
        return Available(version=str(llama_cpp.__version__), detail=features.strip(" |\n"), hint=hint)

    def kernels(self) -> KernelReport:
        """Whose kernels this build has: told from its file, for llama.cpp itself does not say."""
        from edgellm_llamacpp.amx import has_amx, sound
        from edgellm_llamacpp.native import import_binding
        from edgellm_llamacpp.repacking import cpu_flags, own_attention, own_kernels

        api = import_binding()
        missing = "" if "avx2" in cpu_flags() else "this CPU has no AVX2"
        amx = "it has AMX for that" if has_amx(api) and sound(api) else ""
        choices = (
            _choice("linear", "rows side by side", own_kernels(), missing or amx),
            _choice("attention", "a lane for each cell", own_attention(), missing),
        )
        return KernelReport("cpu", choices)

    def supports(self, model: ModelFile) -> str | None:
        """Refuses only what certainly cannot generate text; which architectures it knows, loading tells."""
        kind = str(model.metadata.get("general.type", "model"))
        if kind in _NOT_MODELS:
            return _NOT_MODELS[kind]
        if model.architecture == "clip":
            return _NOT_MODELS["mmproj"]
        if makes_embeddings(model):
            return f"this {model.architecture} model makes embeddings, not text"
        return _incomplete(model)

    def embeds(self, model: ModelFile) -> str | None:
        if not makes_embeddings(model):
            return f"this {model.architecture} model is not made for embeddings"
        return _incomplete(model)

    @property
    def kv_types(self) -> tuple[str, ...]:
        from edgellm_llamacpp.costs import KV_TYPES

        return KV_TYPES

    def cost_model(self, model: ModelFile, kv_type: str) -> CostModel:
        from edgellm_llamacpp.costs import cost_model

        return cost_model(model, kv_type)

    def embedding_cost(self, model: ModelFile, batch_tokens: int) -> CostModel:
        from edgellm_llamacpp.costs import embedding_cost

        return embedding_cost(model, batch_tokens)

    def tokenizer(self, model: ModelFile) -> Tokenizer:
        """Raises LoadFailed when the file has no usable vocabulary."""
        from edgellm_llamacpp.native import Vocabulary, open_vocabulary
        from edgellm_llamacpp.tokenizer import LlamaCppTokenizer

        lib = _library()
        vocabulary = self._vocabularies.get(key := _key(model.path))
        if vocabulary is None:
            vocabulary = Vocabulary(self._open.get(key) or open_vocabulary(lib, model.path))
            self._vocabularies[key] = vocabulary
            self._share(key)  # the whole model may have come meanwhile
        if vocabulary.ask(lib.api.llama_vocab_type) == lib.api.LLAMA_VOCAB_TYPE_NONE:
            raise LoadFailed(f"{model.path.name} has no tokenizer", hint="get the model in another file")
        tokenizer = LlamaCppTokenizer(lib, vocabulary, model.path)
        _ = tokenizer.end_of_generation  # everyone needs it, and finding it takes a while: best done beside a load
        return tokenizer

    def load(self, model: ModelFile, placement: Placement, progress: Callable[[float], None]) -> TokenRunner:
        from edgellm_llamacpp.amx import overtaxes_amx, without_amx
        from edgellm_llamacpp.exactness import Exactness, ordinary
        from edgellm_llamacpp.native import open_context, open_model, repacks
        from edgellm_llamacpp.repacking import OWN_KV, own_attention
        from edgellm_llamacpp.runner import LlamaCppRunner

        lib = _library()
        _check(lib, placement)
        exactness = Exactness(lib.api, model, placement, repacks(lib, placement))
        with without_amx(lib.api) if overtaxes_amx(model) else nullcontext():
            opened = open_model(lib, model, placement, progress)
        _refuse(lib, opened, model.path.name)
        alike = placement.kv_type in OWN_KV and ordinary(model)
        context = open_context(lib, opened, placement, alike=alike)
        self._open[key := _key(model.path)] = opened
        self._share(key)
        exact_cells = exactness.cells()
        progress(1.0)
        return LlamaCppRunner(lib, opened, context, placement, exact_cells, tiled=not (alike and own_attention()))

    def load_embedder(
        self, model: ModelFile, placement: Placement, progress: Callable[[float], None]
    ) -> EmbeddingRunner:
        from edgellm_llamacpp.embedding import LlamaCppEmbedder
        from edgellm_llamacpp.native import open_context, open_model

        lib = _library()
        _check(lib, placement)
        opened = open_model(lib, model, placement, progress)
        if lib.api.llama_model_has_encoder(opened.pointer) and lib.api.llama_model_has_decoder(opened.pointer):
            raise LoadFailed(f"{model.path.name} is an encoder-decoder model", hint="this engine embeds with encoders")
        embedder = LlamaCppEmbedder(lib, opened, open_context(lib, opened, placement, embeds=True), placement)
        self._open[key := _key(model.path)] = opened
        self._share(key)
        progress(1.0)
        return embedder

    def _share(self, key: _Key) -> None:
        """Once a whole model is there, its file's tokenizers read the vocabulary in it, and have none of their own."""
        model, vocabulary = self._open.get(key), self._vocabularies.get(key)
        if model is not None and vocabulary is not None:
            vocabulary.move(model)


def _choice(op: str, own: str, built: bool, obstacle: str) -> KernelChoice:
    """`own`: what edgellm's kernel does; `built`: this build has it; `obstacle`: why this CPU does without."""
    if built and not obstacle:
        return KernelChoice(op, "edgellm", f"{own}, for the types that it knows; llama.cpp's for all others")
    why_not = obstacle or "it is not in this build"
    return KernelChoice(op, "llama.cpp", "it brings its own", (("edgellm", why_not),))


def _incomplete(model: ModelFile) -> str | None:
    """What a file lacks to be run."""
    if not model.tensors:
        return "the file holds a vocabulary and no weights"
    if model.metadata.get("tokenizer.ggml.model", "none") in ("none", "no_vocab"):
        return "the file has no tokenizer"
    return None


def _install() -> str:
    return f"`{pip_install(_PACKAGE)}`; {_COMPILES}"


def _library() -> Library:
    from edgellm_llamacpp.native import library

    try:
        return library()
    except (ImportError, OSError, RuntimeError, AttributeError) as error:
        raise LoadFailed(f"llama-cpp-python does not work here: {error}", hint=_install()) from error


def _key(path: Path) -> _Key:
    """A file as it is now: replaced in place, it is another."""
    try:
        found = path.stat()
    except OSError as error:
        raise LoadFailed(f"cannot open {path}: {error.strerror}", hint="pull the model again") from error
    return path, found.st_mtime_ns, found.st_size


def _check(lib: Library, placement: Placement) -> None:
    """Raises LoadFailed for a room that cannot be had here."""
    from edgellm_llamacpp.costs import KV_TYPES

    most = int(lib.api.llama_max_parallel_sequences())
    if placement.max_sequences > most:
        raise LoadFailed(
            f"llama.cpp keeps 1 to {most} sequences, not {placement.max_sequences}",
            hint="change max_sequences",
        )
    placement.check("llama.cpp", KV_TYPES)


def _refuse(lib: Library, opened: Model, name: str) -> None:
    """Models that load but do not continue text one token at a time."""
    api = lib.api
    if api.llama_model_has_encoder(opened.pointer):
        raise LoadFailed(f"{name} is an encoder-decoder model", hint="this engine runs decoder-only models")
    if not api.llama_model_has_decoder(opened.pointer):
        raise LoadFailed(f"{name} makes embeddings, not text", hint="this engine runs models that generate text")
    if api.llama_model_is_diffusion(opened.pointer):
        raise LoadFailed(f"{name} is a diffusion model", hint="this engine runs models that write token by token")


plugin: EmbeddingPlugin = LlamaCppPlugin()
