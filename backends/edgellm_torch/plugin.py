"""The torch engine as the app sees it. Nothing heavy is imported here: entry points are listed everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable

from edgellm.contracts.embedding import EmbeddingPlugin, EmbeddingRunner
from edgellm.contracts.engine import Available, CostModel, ModelFile, Placement, Tokenizer, Unavailable
from edgellm.contracts.kernels import KernelChoice, KernelReport
from edgellm.contracts.runner import TokenRunner
from edgellm.errors import EdgeError, InsufficientMemory, LoadFailed, pip_install, short_of_memory
from edgellm.formats.summary import makes_embeddings


def _install() -> str:
    return pip_install("edgellm[torch]")


class TorchPlugin:
    """The whole surface of the engine. Methods may be called from several threads."""

    name = "torch"
    title = "PyTorch"
    requires = ("torch", "tokenizers", "edgellm_kernels")

    def probe(self) -> Available | Unavailable:
        try:
            import torch
        except ImportError as error:
            return Unavailable(f"torch is not installed ({_last_line(error)})", _install())
        except (OSError, RuntimeError) as error:
            return Unavailable(f"torch does not work here: {_last_line(error)}", f"reinstall it: {_install()}")
        from edgellm_torch.devices import gpus

        found = "; ".join(f"{gpu.name}: {gpu.title}, {gpu.free >> 20:,} MiB free" for gpu in gpus())
        return Available(version=str(torch.__version__), detail=f"{found or 'CPU'}, reference kernels: exact, and slow")

    def kernels(self) -> KernelReport:
        """What `edgellm_kernels` chooses on the device that this engine computes on."""
        from edgellm_kernels.dispatch import explain

        from edgellm_torch.devices import cpu, gpus

        device = (*gpus(), cpu())[0].name
        choices = (KernelChoice(c.op, c.implementation, c.reason, c.refused) for c in explain(device.partition(":")[0]))
        return KernelReport(device, tuple(choices))

    def supports(self, model: ModelFile) -> str | None:
        """From the header: the architecture, every tensor's shape and type, the tokenizer's kind."""
        from edgellm_torch.architectures import decoder

        if makes_embeddings(model):
            return f"this {model.architecture} model makes embeddings, not text"
        return _refusal(model, decoder)

    def embeds(self, model: ModelFile) -> str | None:
        """From the header, too."""
        from edgellm_torch.pooling import embedding_parts

        if not makes_embeddings(model):
            return f"this {model.architecture} model is not made for embeddings"
        return _refusal(model, embedding_parts)

    @property
    def kv_types(self) -> tuple[str, ...]:
        from edgellm_torch.costs import KV_TYPES

        return KV_TYPES

    def cost_model(self, model: ModelFile, kv_type: str) -> CostModel:
        from edgellm_torch.costs import cost_model

        return cost_model(model, kv_type)

    def embedding_cost(self, model: ModelFile, batch_tokens: int) -> CostModel:  # noqa: ARG002  # of each token
        from edgellm_torch.embedding_costs import embedding_cost

        return embedding_cost(model)

    def tokenizer(self, model: ModelFile) -> Tokenizer:
        """Raises BadModelFile for a vocabulary that is damaged or of another kind."""
        _require_library()
        from edgellm_torch.tokenizer import TorchTokenizer

        return TorchTokenizer(model)

    def load(self, model: ModelFile, placement: Placement, progress: Callable[[float], None]) -> TokenRunner:
        _require_library()
        from edgellm_torch.load import load

        return load(model, placement, progress)

    def load_embedder(
        self, model: ModelFile, placement: Placement, progress: Callable[[float], None]
    ) -> EmbeddingRunner:
        _require_library()
        from edgellm_torch.load_embedder import load_embedder

        return load_embedder(model, placement, progress)


def _refusal(model: ModelFile, parts: Callable[[ModelFile], object]) -> str | None:
    """Why a file is none that `parts` can take apart, and whose text the tokenizer can cut."""
    from edgellm_torch.tokenizer import refusal

    if not model.tensors:
        return "the file holds a vocabulary and no weights"
    try:
        parts(model)
        return refusal(model)
    except EdgeError as error:
        return error.message


def _require_library() -> None:
    """Import torch; its threads do not spin for long while they wait ("Spinning threads" in docs/log.md)."""
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    from edgellm_torch import allocator

    allocator.settle()
    try:
        import torch  # noqa: F401
    except (ImportError, OSError, RuntimeError, MemoryError) as error:
        why = _last_line(error)
        if short_of_memory(error):
            raise InsufficientMemory(
                f"there is no memory left to start PyTorch: {why}",
                hint="close other programs, or raise the limit that this process runs under",
            ) from error
        raise LoadFailed(f"the PyTorch engine needs torch, which does not work here: {why}", hint=_install()) from error


def _last_line(error: Exception) -> str:
    """What went wrong in the end: what libraries say when they cannot be imported can be a page."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


plugin: EmbeddingPlugin = TorchPlugin()
