"""What is particular to llama.cpp: its ways to abort, to forget and to fail."""

from __future__ import annotations

import ctypes
import mmap
import os
import re
import signal
import subprocess
import sys
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import psutil
import pytest
import torch_zoo
from contract.driving import GREEDY, append, step, token
from contract.engines import PLACEMENT, TINY
from edgellm_llamacpp import amx
from edgellm_llamacpp.amx import forbid_amx, has_amx, without_amx
from edgellm_llamacpp.mapping import forget
from edgellm_llamacpp.native import (
    Library,
    Model,
    Vocabulary,
    _open,
    library,
    open_context,
    open_model,
    open_vocabulary,
)
from edgellm_llamacpp.plugin import LlamaCppPlugin
from edgellm_llamacpp.repacking import own_kernels, repacked
from edgellm_llamacpp.runner import LlamaCppRunner
from edgellm_llamacpp.tokenizer import LlamaCppTokenizer
from gguf import GGUFWriter

from edgellm.contracts.engine import Available, ModelFile, Placement, TensorInfo, Unavailable
from edgellm.contracts.runner import Row
from edgellm.errors import EdgeError, GenerationFailed, InsufficientMemory, LoadFailed
from edgellm.formats.gguf import read_model


def load(path: Path, placement: Placement = TINY) -> LlamaCppRunner:
    runner = LlamaCppPlugin().load(read_model(path), placement, lambda _done: None)
    assert isinstance(runner, LlamaCppRunner)
    return runner


@pytest.fixture
def small(smollm2: Path) -> Iterator[LlamaCppRunner]:
    runner = load(smollm2)
    yield runner
    runner.close()


@pytest.mark.skipif(sys.platform != "linux", reason="what is mapped is read from /proc")
def test_weights_that_were_rearranged_count_once(tmp_path: Path, smollm2: Path) -> None:
    """With our kernels every matrix is: of the file only rows of the embedding are read, when tokens are looked up."""
    if not own_kernels():
        pytest.skip("this build has other kernels, which take some matrices as they are")
    path = tmp_path / "in large pieces.gguf"
    path.write_bytes(smollm2.read_bytes())  # a file written at once lies in the system's cache in pieces of 2 MiB
    runner = load(path)
    append(runner, 0, 0, [5, 1000, 40_000])
    resident = sum(each.rss for each in psutil.Process().memory_maps() if each.path == str(path.resolve()))
    runner.close()
    assert resident < 8 << 20


@pytest.mark.skipif(sys.platform != "linux", reason="what is mapped is read from /proc")
@pytest.mark.parametrize("name", [b"a b.gguf", b" a\nb\\c ", b"a\xff", "a\u2028b\x0c\x85c".encode()])
def test_a_mapped_file_may_have_any_name(tmp_path: Path, name: bytes) -> None:
    size, at = 16 << 20, 1 << 20
    path = tmp_path / os.fsdecode(name)
    path.write_bytes(bytes(size))
    tensors = tuple(TensorInfo(str(n), "F32", (at // 4,), at, n * at) for n in range(size // at))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert not any(mapped[:: mmap.PAGESIZE])
        before = psutil.Process().memory_info().shared
        forget(ModelFile(path, size, "llama", {}, tensors))
        assert before - psutil.Process().memory_info().shared > size * 3 // 4


@pytest.mark.skipif(sys.platform != "linux", reason="what is mapped is read from /proc")
def test_advice_is_for_what_was_rearranged_and_lies_in_the_file(tmp_path: Path) -> None:
    """llama.cpp unmaps the part of a file before the first weight that it reads there: others' memory may follow."""
    kind, shape = "Q4_0", (2048, 1024)
    if not repacked(kind, shape):
        pytest.skip("this CPU has no use for rearranged weights")
    at, path = 1 << 20, tmp_path / "model.gguf"
    path.write_bytes(bytes(3 * at))
    moved = [TensorInfo(name, kind, shape, at, offset) for name, offset in (("unmapped", 0), ("mapped", at))]
    used = TensorInfo("used where it lies", "F32", (512, 512), at, 2 * at)
    libc = ctypes.CDLL(None)
    libc.mmap.restype, libc.mmap.argtypes = ctypes.c_void_p, (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 4)
    libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    others = libc.mmap(None, 3 * at, mmap.PROT_READ, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    with path.open("rb") as file:
        fixed = 0x10
        mapped = libc.mmap(others + at, 2 * at, mmap.PROT_READ, mmap.MAP_SHARED | fixed, file.fileno(), at)
    assert mapped == others + at
    forget(ModelFile(path, 3 * at, "llama", {}, (*moved, used)))
    areas = Path("/proc/self/smaps").read_text("utf-8", "replace")
    libc.munmap(others, 3 * at)
    advised = [_has_advice(areas, others + part * at) for part in range(3)]
    assert advised == [False, True, False]


def _has_advice(areas: str, start: int) -> bool:
    """Whether the area that begins there is read at random, by what Linux says of areas."""
    flags = re.search(rf"^{start:x}-.*?^VmFlags:(.*?)$", areas, re.DOTALL | re.MULTILINE)
    assert flags is not None
    return "rr" in flags[1].split()


# -- memory that forgets -----------------------------------------------------------------------------


def test_windowed_layers_forget_and_reusable_says_so(gemma3: Path) -> None:
    """Gemma 3 keeps 512 tokens in most layers; with one sequence, llama.cpp keeps room for little more than that."""
    runner = load(gemma3, msgspec.structs.replace(PLACEMENT, context=2048, capacity=1024, max_sequences=1))
    ids = [2, *(1000 + 7 * i for i in range(829))]
    append(runner, 0, 0, ids[:600], chunk=200)
    assert runner.reusable(0, 10) == 10  # nothing has been overwritten yet
    append(runner, 0, 600, ids[600:], chunk=115)
    expected = token(step(runner, Row(0, 830, [5], GREEDY))[0])
    assert runner.reusable(0, 100) == 0
    assert runner.reusable(0, 831) == 831
    with pytest.raises(ValueError, match="no longer holds"):
        runner.truncate(0, 100)
    assert runner.reusable(0, 825) == 825
    runner.truncate(0, 825)
    assert token(step(runner, Row(0, 825, [*ids[825:], 5], GREEDY))[0]) == expected
    # A search for room that fails may overwrite: after it only the end is trusted, until the sequence has grown.
    assert step(runner, Row(0, 831, ids[:256]))[0].error == "no_room"
    assert runner.reusable(0, 825) == 0
    assert runner.reusable(0, 831) == 831
    append(runner, 0, 831, ids[:10])
    assert runner.reusable(0, 835) == 835
    runner.free(0)
    assert runner.reusable(0, 10) == 0
    runner.close()


# -- logits and failures -----------------------------------------------------------------------------


def test_numbers_that_are_not_finite_are_an_error_of_their_row(small: LlamaCppRunner) -> None:
    rows = [Row(0, 0, [1, 2], GREEDY), Row(1, 0, [1, 2], GREEDY)]
    ticket = small.submit(rows)
    small._logits(ticket.last[0])[17] = np.nan
    spoiled, sound = small.collect(ticket)
    assert (spoiled.tokens, spoiled.error) == ((), "nan")
    assert sound.error is None


def test_logits_are_read_in_place(small: LlamaCppRunner) -> None:
    ticket = small.submit([Row(0, 0, [1, 2], GREEDY)])
    view = small._logits(ticket.last[0])
    view[:] = 0
    view[4321] = 1
    assert small.collect(ticket)[0].tokens == (4321,)


def test_a_failing_step_raises_and_asks_what_is_left(small: LlamaCppRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    append(small, 0, 0, [1, 2, 3])
    real = small._api.llama_decode

    class Failing:
        """The binding, but for a decode that computes and then says that it failed."""

        def __getattr__(self, name: str) -> Any:
            return getattr(library().api, name)

        def llama_decode(self, context: int, batch: Any) -> int:
            real(context, batch)
            return -3

    monkeypatch.setattr(small, "_api", Failing())
    with pytest.raises(GenerationFailed, match="-3"):
        small.submit([Row(0, 3, [4, 5])])
    monkeypatch.undo()
    append(small, 0, 5, [6])
    small.free(0)
    append(small, 0, 0, [1])


# -- loading -----------------------------------------------------------------------------------------


def test_load_failures_carry_llama_cpps_own_words(tmp_path: Path, smollm2: Path) -> None:
    path = tmp_path / "other.gguf"
    writer = GGUFWriter(path, "no-such-architecture")
    writer.add_tensor("token_embd.weight", np.zeros((8, 4), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(LoadFailed, match="unknown model architecture: 'no-such-architecture'"):
        load(path)
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(smollm2.read_bytes()[:50_000_000])
    model = msgspec.structs.replace(read_model(smollm2), path=cut)
    with pytest.raises(LoadFailed, match=r"cut\.gguf.*(bounds|corrupted|incomplete)"):
        LlamaCppPlugin().load(model, TINY, lambda _done: None)


def test_more_sequences_than_it_keeps_are_refused(smollm2: Path) -> None:
    with pytest.raises(LoadFailed, match="1 to 256 sequences, not 257"):
        load(smollm2, msgspec.structs.replace(TINY, max_sequences=257))


def test_a_context_that_cannot_be_made_is_a_load_failure(smollm2: Path) -> None:
    placement = msgspec.structs.replace(TINY, max_sequences=300, batch_tokens=300)
    lib = library()
    model = open_model(lib, read_model(smollm2), placement, lambda _done: None)
    with pytest.raises(LoadFailed, match="n_seq_max must be <= 256"):
        open_context(lib, model, placement)


@pytest.mark.parametrize(("mmap", "mlock"), [(True, False), (False, False), (True, True), (False, True)])
def test_load_modes(smollm2: Path, mmap: bool, mlock: bool) -> None:
    runner = load(smollm2, msgspec.structs.replace(TINY, use_mmap=mmap, use_mlock=mlock))
    assert token(step(runner, Row(0, 0, [1, 2, 3], GREEDY))[0]) >= 0
    runner.close()


def test_a_tokenizer_outlives_its_runner_and_shares_its_vocabulary(smollm2: Path) -> None:
    plugin = LlamaCppPlugin()
    model = read_model(smollm2)
    runner = plugin.load(model, TINY, lambda _done: None)
    tokenizer = plugin.tokenizer(model)
    ids = tokenizer.encode("shared", special=False)
    runner.close()
    del runner
    assert tokenizer.encode("shared", special=False) == ids
    assert LlamaCppPlugin().tokenizer(model).encode("shared", special=False) == ids


def test_a_tokenizer_may_be_made_beside_a_load(smollm2: Path) -> None:
    plugin = LlamaCppPlugin()
    model = read_model(smollm2)
    with ThreadPoolExecutor(1) as helper:
        made = helper.submit(plugin.tokenizer, model)
        runner = plugin.load(model, TINY, lambda _done: None)
        ids = made.result().encode("beside", special=False)
    assert plugin.tokenizer(model).encode("beside", special=False) == ids
    runner.close()


def test_a_tokenizer_moves_to_the_whole_model_once_it_is_there(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[weakref.ref[Model]] = []

    def noted(lib: Library, path: Path) -> Model:
        model = open_vocabulary(lib, path)
        opened.append(weakref.ref(model))
        return model

    monkeypatch.setattr("edgellm_llamacpp.native.open_vocabulary", noted)
    plugin = LlamaCppPlugin()
    model = read_model(smollm2)
    tokenizers = [plugin.tokenizer(model), plugin.tokenizer(model)]
    (own,) = opened
    ids = tokenizers[0].encode("moved", special=False)
    assert own() is not None
    runner = plugin.load(model, TINY, lambda _done: None)
    assert own() is None  # and with it the memory of one vocabulary
    for tokenizer in (*tokenizers, plugin.tokenizer(model)):
        assert tokenizer.encode("moved", special=False) == ids
    assert len(opened) == 1
    runner.close()


@pytest.mark.parametrize("way", ["ask", "ask_model"])
def test_what_is_read_of_a_vocabulary_is_freed_only_then(way: str, smollm2: Path) -> None:
    lib = library()
    first, second = open_vocabulary(lib, smollm2), open_vocabulary(lib, smollm2)
    alive, vocabulary = weakref.ref(first), Vocabulary(first)
    del first

    def reads(_pointer: int) -> bool:
        vocabulary.move(second)
        return alive() is not None

    assert getattr(vocabulary, way)(reads)
    assert alive() is None


def test_a_vocabulary_may_move_while_others_read_it(smollm2: Path) -> None:
    lib = library()
    vocabulary = Vocabulary(open_vocabulary(lib, smollm2))
    tokenizer = LlamaCppTokenizer(lib, vocabulary, smollm2)
    text = "What moves is freed once nobody reads it any more. " * 40
    ids = tokenizer.encode(text, special=False)
    with ThreadPoolExecutor(2) as readers:
        reading = [readers.submit(lambda: [tokenizer.encode(text, special=False) for _ in range(60)]) for _ in range(2)]
        for _ in range(10):
            vocabulary.move(open_vocabulary(lib, smollm2))
        assert all(found == ids for done in reading for found in done.result())


def test_amx_is_taken_off_the_list_of_buffer_types() -> None:
    kinds = (ctypes.c_void_p * 4)(11, 22, 33, None)
    names = {11: b"CPU_KLEIDIAI", 22: b"AMX", 33: b"CPU_REPACK"}
    get_list = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)(lambda _device: ctypes.addressof(kinds))
    lib = SimpleNamespace(
        ggml_backend_dev_by_type=lambda _kind: 1,
        ggml_backend_dev_backend_reg=lambda _device: 2,
        ggml_backend_reg_get_proc_address=lambda _registry, _name: ctypes.cast(get_list, ctypes.c_void_p).value,
        ggml_backend_buft_name=lambda kind: names[kind],
    )
    assert forbid_amx(SimpleNamespace(llama_cpp=SimpleNamespace(_lib=lib)))
    assert list(kinds)[:3] == [11, 33, None]
    assert not forbid_amx(SimpleNamespace(llama_cpp=SimpleNamespace(_lib=SimpleNamespace())))


# -- what cannot run ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("architecture", "metadata", "reason"),
    [
        ("llama", {"general.type": "adapter"}, "adapter"),
        ("llama", {"general.type": "mmproj"}, "vision or audio"),
        ("clip", {}, "vision or audio"),
        ("nomic-bert", {}, "embeddings"),
        ("qwen3", {"qwen3.attention.causal": False}, "embeddings"),
        ("llama", {"tokenizer.ggml.model": "none"}, "no tokenizer"),
    ],
)
def test_certain_refusals(smollm2: Path, architecture: str, metadata: dict[str, Any], reason: str) -> None:
    model = read_model(smollm2)
    changed = msgspec.structs.replace(model, architecture=architecture, metadata=model.metadata | metadata)
    assert reason in (LlamaCppPlugin().supports(changed) or "")


# -- the process survives ----------------------------------------------------------------------------


def run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=False)


@pytest.mark.parametrize("ending", ["runner.close()", "pass", "del runner, tokenizer"])
def test_exit_is_clean_closed_or_not(smollm2: Path, ending: str) -> None:
    done = run(f"""
from pathlib import Path
from edgellm.contracts.engine import Placement
from edgellm.contracts.runner import Row
from edgellm.formats.gguf import read_model
from edgellm_llamacpp.plugin import plugin
model = read_model(Path({str(smollm2)!r}))
placement = Placement(context=64, capacity=64, max_sequences=1, batch_tokens=8, threads=1, threads_batch=1)
runner = plugin.load(model, placement, lambda done: None)
tokenizer = plugin.tokenizer(model)
runner.collect(runner.submit([Row(0, 0, [1, 2])]))
{ending}
print("end")
""")
    assert (done.returncode, done.stdout, done.stderr) == (0, "end\n", "")


def test_runs_that_overflow_std_regex_do_not(tmp_path: Path) -> None:
    """A vocabulary split by std::regex, on a thread with the stack that some systems give."""
    path = tmp_path / "vocabulary.gguf"
    writer = GGUFWriter(path, "llama")
    letters = [chr(c) for c in range(ord("!"), ord("~") + 1)] + ["Ġ"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("deepseek-llm")
    writer.add_token_list(letters)
    writer.add_token_types([1] * len(letters))
    writer.add_token_merges(["a a"])
    for key, value in (("context_length", 8), ("embedding_length", 4), ("block_count", 1)):
        writer.add_uint32(f"llama.{key}", value)
    writer.add_uint32("llama.feed_forward_length", 4)
    writer.add_uint32("llama.attention.head_count", 1)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    done = run(f"""
import threading
from pathlib import Path
from edgellm.contracts.engine import ModelFile
from edgellm_llamacpp.plugin import plugin
model = ModelFile(path=Path({str(path)!r}), size=1, architecture="llama", metadata={{}}, tensors=())
tokenizer = plugin.tokenizer(model)
def go():
    for text in ("a" * 50_000, "!" * 50_000, "aB" * 25_000, "a!" * 25_000):
        print(len(tokenizer.encode(text, special=True)) > 0)
threading.stack_size(512 * 1024)
thread = threading.Thread(target=go)
thread.start()
thread.join()
""")
    assert (done.returncode, done.stdout) == (0, "True\n" * 4), done.stderr


# -- probing -----------------------------------------------------------------------------------------


def test_probe_reports_version_and_cpu() -> None:
    state = LlamaCppPlugin().probe()
    assert isinstance(state, Available)
    assert "CPU" in state.detail


@pytest.mark.parametrize("error", [ImportError("No module named 'llama_cpp'"), OSError("bad ELF"), RuntimeError("no")])
def test_probe_says_what_mends_it(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    class Broken:
        def find_spec(self, name: str, *_: object) -> None:
            if name == "llama_cpp":
                raise error

    monkeypatch.delitem(sys.modules, "llama_cpp", raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken(), *sys.meta_path])
    state = LlamaCppPlugin().probe()
    assert isinstance(state, Unavailable)
    assert str(error) in state.reason
    assert "pip install llama-cpp-python" in state.hint
    assert "C++ compiler" in state.hint


def test_importing_the_plugin_imports_nothing_heavy() -> None:
    done = run("import sys, edgellm_llamacpp.plugin; print([m for m in ('llama_cpp', 'numpy') if m in sys.modules])")
    assert done.stdout == "[]\n", done.stderr


@pytest.mark.parametrize("kind", ["Q8_0", "F16"])
def test_latent_attention_runs_on_every_cpu(kind: str, tmp_path: Path) -> None:
    """AMX takes its matrices and cannot multiply them. What is loaded afterwards has AMX again."""
    before = offered()
    runner = load(torch_zoo.write(tmp_path, "deepseek2", kind).quantised)
    assert token(step(runner, Row(0, 0, [1, 5, 6, 7], GREEDY))[0]) >= 0
    runner.close()
    assert offered() == before
    with without_amx(library().api):
        assert len(offered()) == len(before) - has_amx(library().api)
    assert offered() == before


def offered() -> list[int]:
    """The buffer types that weights are offered."""
    kinds = amx._list(library().api)
    found: list[int] = []
    while kinds and kinds[len(found)]:
        found.append(kinds[len(found)])
    return found


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"llama_model_load: error loading model: std::bad_alloc", InsufficientMemory),
        (b"llama_model_load: error loading model: unable to allocate CPU buffer", InsufficientMemory),
        (b"llama_model_load: error loading model: bad magic", LoadFailed),
    ],
)
def test_a_process_without_memory_blames_no_file(
    line: bytes, kind: type[EdgeError], monkeypatch: pytest.MonkeyPatch
) -> None:
    lib = library()

    def fail(*_: object) -> None:
        lib.log._write(4, line, None)

    monkeypatch.setattr(lib, "api", SimpleNamespace(llama_model_load_from_file=fail))
    with pytest.raises(kind, match=r"a\.gguf"):
        _open(lib, [Path("a.gguf")], None)
    lib.log.clear()


ABORT = """
from edgellm_llamacpp.native import import_binding
import_binding().llama_cpp._lib.ggml_abort(b"some.c", 1, b"that cannot be")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere ggml starts no debugger")
def test_a_failed_assertion_ends_the_process_and_leaves_no_other(tmp_path: Path) -> None:
    """ggml would fork a debugger first: found by its name on the path, as here, it would leave a file."""
    debugger = tmp_path / "gdb"
    debugger.write_text(f"#!/bin/sh\ntouch {tmp_path / 'started'}\n")
    debugger.chmod(0o755)
    env = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run([sys.executable, "-c", ABORT], capture_output=True, text=True, check=False, env=env)
    assert done.returncode == -signal.SIGABRT
    assert "some.c:1: that cannot be" in done.stderr
    assert not (tmp_path / "started").exists()
