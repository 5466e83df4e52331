"""What the torch engine says of files that it cannot run, and of rooms that it cannot have."""

from __future__ import annotations

import builtins
import errno
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zoo
from edgellm_torch import devices
from edgellm_torch.architectures import ARCHITECTURES, decoder
from edgellm_torch.plugin import TorchPlugin
from zoo import Size

from edgellm.contracts.engine import ModelFile, Placement, Unavailable
from edgellm.engine.protocol import Load
from edgellm.engine.worker_base import _by_name, _unforeseen
from edgellm.errors import EdgeError, ErrorInfo, InsufficientMemory, LoadFailed
from edgellm.formats.gguf import read_model

ROOM = Placement(context=256, capacity=256, max_sequences=2, batch_tokens=64, threads=1, threads_batch=1)
SMALL = Size(layers=2, width=64, ffn=64, heads=4, kv_heads=2, head=16, vocabulary=64)


@pytest.fixture
def model(tmp_path: Path) -> ModelFile:
    return read_model(zoo.write(tmp_path, "llama", SMALL, tokenizer="llama"))


def changed(model: ModelFile, **keys: Any) -> ModelFile:
    """With other metadata; None takes a key away."""
    metadata = {**model.metadata, **{f"llama.{name.replace('__', '.')}": value for name, value in keys.items()}}
    return msgspec.structs.replace(model, metadata={key: v for key, v in metadata.items() if v is not None})


def retyped(model: ModelFile, name: str, **fields: Any) -> ModelFile:
    tensors = [msgspec.structs.replace(t, **fields) if t.name == name else t for t in model.tensors]
    return msgspec.structs.replace(model, tensors=tuple(tensors))


def without(model: ModelFile, name: str) -> ModelFile:
    return msgspec.structs.replace(model, tensors=tuple(t for t in model.tensors if t.name != name))


DOWN = "blk.1.ffn_down.weight"
REFUSALS: Mapping[str, tuple[Callable[[ModelFile], ModelFile], Sequence[str]]] = {
    "architecture": (lambda m: msgspec.structs.replace(m, architecture="rwkv7"), ["does not run", "rwkv7"]),
    "no weights": (lambda m: msgspec.structs.replace(m, tensors=()), ["no weights"]),
    "tensor type": (lambda m: retyped(m, DOWN, type="IQ2_XXS"), [DOWN, "IQ2_XXS", "does not know"]),
    "missing tensor": (lambda m: without(m, DOWN), ["no tensor", DOWN]),
    "missing norm": (lambda m: without(m, "output_norm.weight"), ["no tensor", "output_norm.weight"]),
    "shape": (lambda m: retyped(m, DOWN, shape=(32, 64)), [DOWN, "(32, 64)", "(64, 64)"]),
    "missing key": (lambda m: changed(m, block_count=None), ["llama.block_count", "is missing"]),
    "key of another kind": (lambda m: changed(m, embedding_length="many"), ["llama.embedding_length", "many"]),
    "key out of range": (lambda m: changed(m, block_count=0), ["llama.block_count", "0"]),
    "heads": (lambda m: changed(m, attention__head_count_kv=3), ["attention.head_count", "multiple"]),
    "more layers than there are": (lambda m: changed(m, block_count=3), ["no tensor", "blk.2."]),
    "rope": (lambda m: changed(m, rope__scaling__type="longrope"), ["rope.scaling.type", "longrope"]),
    "not a number": (lambda m: changed(m, rope__freq_base=float("nan")), ["rope.freq_base", "nan"]),
    "tokenizer": (
        lambda m: msgspec.structs.replace(m, metadata={**m.metadata, "tokenizer.ggml.model": "rwkv"}),
        ["tokenizer", "rwkv"],
    ),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_what_it_cannot_run_is_refused_by_name(model: ModelFile, name: str) -> None:
    change, words = REFUSALS[name]
    assert TorchPlugin().supports(model) is None
    refusal = TorchPlugin().supports(change(model))
    assert refusal is not None
    for word in words:
        assert word in refusal


@pytest.mark.parametrize("name", [name for name in REFUSALS if name not in ("no weights", "tokenizer")])
def test_loading_says_the_same_with_a_way_out(model: ModelFile, name: str) -> None:
    change, words = REFUSALS[name]
    with pytest.raises(LoadFailed) as caught:
        TorchPlugin().load(change(model), ROOM, lambda _done: None)
    assert all(word in caught.value.message for word in words)
    assert caught.value.hint


PLACES: dict[str, tuple[dict[str, Any], str]] = {
    "llama.cpp's KV type": ({"kv_type": "q8_0"}, "no KV type q8_0"),
    "GPU": ({"gpu_layers": 2}, "there is no GPU"),
    "part of a GPU": ({"gpu_layers": 1}, "1 of 2 layers"),
    "disk": ({"spills": True}, "holds all weights in memory"),
}


@pytest.mark.parametrize("name", PLACES)
def test_rooms_that_it_cannot_have_are_refused(model: ModelFile, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine without a GPU."""
    monkeypatch.setattr(devices, "gpus", list)
    fields, words = PLACES[name]
    with pytest.raises(LoadFailed, match=words):
        TorchPlugin().load(model, msgspec.structs.replace(ROOM, **fields), lambda _done: None)


def test_more_memory_than_there_is(model: ModelFile) -> None:
    endless = msgspec.structs.replace(ROOM, context=1 << 45, capacity=1 << 45)
    with pytest.raises(InsufficientMemory, match=r"llama.gguf does not fit in memory") as caught:
        TorchPlugin().load(model, endless, lambda _done: None)
    assert caught.value.hint


def test_no_room_to_map_the_file_is_not_the_files_fault(model: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr("edgellm_torch.loader.mmap.mmap", refuse)
    with pytest.raises(InsufficientMemory, match="cannot be mapped"):
        TorchPlugin().load(model, ROOM, lambda _done: None)


def test_what_a_library_says_at_length_is_told_by_its_last_line(
    model: ModelFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = "\n\nIMPORTANT: PLEASE READ THIS\n\nOriginal error was: libx.so: "
    for said, kind in (("failed to map segment\n", InsufficientMemory), ("wrong ELF class\n", LoadFailed)):
        real = builtins.__import__

        def broken(name: str, *rest: Any, told: str = page + said, real: Any = real) -> Any:
            if name == "torch":
                raise ImportError(told)
            return real(name, *rest)

        with monkeypatch.context() as patch:
            patch.setattr(builtins, "__import__", broken)
            with pytest.raises(kind, match=f"libx.so: {said.strip()}$") as caught:
                TorchPlugin().load(model, ROOM, lambda _done: None)
        assert "IMPORTANT" not in caught.value.message


@pytest.mark.parametrize(
    ("error", "short"),
    [
        (MemoryError(), True),
        (OSError(errno.ENOMEM, "no"), True),
        (ImportError("libtorch.so: failed to map segment from shared object"), True),
        (OSError(errno.ENOENT, "no such file"), False),
        (ImportError("No module named 'torch'"), False),
    ],
)
def test_failures_that_nobody_foresaw_tell_a_lack_of_memory_from_others(error: Exception, short: bool) -> None:
    assert isinstance(_unforeseen(error, "m"), InsufficientMemory if short else LoadFailed)


def test_a_load_that_fails_names_the_model_and_not_its_digest() -> None:
    load = Load("torch", "/home/me/models/blobs/sha256-00ff", ROOM, "gemma:1b")
    for message in ("sha256-00ff ends early", "/home/me/models/blobs/sha256-00ff ends early"):
        assert _by_name(ErrorInfo("load_failed", message, "pull it"), load).message == "gemma:1b ends early"


def test_a_file_that_has_changed_since_its_header_was_read(model: ModelFile, tmp_path: Path) -> None:
    size = model.path.stat().st_size
    with model.path.open("r+b") as file:
        file.truncate(size - 4096)
    with pytest.raises(LoadFailed, match=f"ends at byte {size - 4096}"):
        TorchPlugin().load(model, ROOM, lambda _done: None)
    parted = retyped(model, DOWN, file=1)
    with pytest.raises(LoadFailed, match="part 2 is not there"):
        TorchPlugin().load(parted, ROOM, lambda _done: None)


def test_without_torch_the_way_to_it_is_told(model: ModelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_torch(name: str, *rest: Any, **more: Any) -> Any:
        if name == "torch" or name.startswith("torch."):
            raise ImportError("No module named 'torch'")
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    state = TorchPlugin().probe()
    assert isinstance(state, Unavailable)
    assert "edgellm[torch]" in state.hint
    calls: list[Callable[[], object]] = [
        lambda: TorchPlugin().load(model, ROOM, lambda _done: None),
        lambda: TorchPlugin().tokenizer(model),
    ]
    for call in calls:
        with pytest.raises(EdgeError, match="torch") as caught:
            call()
        assert "edgellm[torch]" in (caught.value.hint or "")


def test_choosing_and_planning_import_no_torch(smollm2: Path) -> None:
    """What the daemon does with engines, in a process of its own."""
    program = f"""
import sys
from pathlib import Path
from edgellm import plugins
from edgellm.formats.gguf import read_model
model = read_model(Path({str(smollm2)!r}))
assert plugins.engine_for(model).name == "llamacpp"
assert "edgellm_torch.plugin" not in sys.modules
plugin = plugins.engine_for(model, "torch")
assert plugin.supports(model) is None
for kv_type in plugin.kv_types:
    plugin.cost_model(model, kv_type)
found = {{"torch", "tokenizers", "numpy", "llama_cpp", "gguf"}} & set(sys.modules)
assert not found, found
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize("architecture", sorted(set(ARCHITECTURES) & set(zoo.ZOO)))
def test_every_family_is_read_whole(architecture: str, tmp_path: Path) -> None:
    """Whatever tensors a file of it has, its description names."""
    model = read_model(zoo.write(tmp_path, architecture))
    parts = decoder(model)
    named = {tensor.name for tensor in model.tensors}
    assert _names(parts) == named


def _names(part: Any) -> set[str]:
    from edgellm_torch.config import linears, norms, vectors

    found = {linear.weight for linear in linears(part)} | {norm.weight for norm in norms(part)}
    return found | {name for name, _ in vectors(part)}
