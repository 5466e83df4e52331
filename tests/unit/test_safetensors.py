"""The safetensors reader and the folders that authors publish: right on real files, a named error on all others."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from malformed import GOOD, entry, safetensors

from edgellm.errors import BadModelFile
from edgellm.formats.checkpoint import is_plain_name, parse_json, read_checkpoint, read_index, read_json
from edgellm.formats.safetensors import (
    BITS,
    SafeTensor,
    SafetensorsFile,
    read_safetensors,
)

FUZZ = settings(max_examples=400)


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_reads_a_file(tmp_path: Path) -> None:
    path = write(tmp_path / "model.safetensors", GOOD)
    found = read_safetensors(path)
    start = len(GOOD) - 24
    assert found == SafetensorsFile(
        path,
        len(GOOD),
        {"format": "pt"},
        (SafeTensor("a", "F32", (2, 2), 16, start), SafeTensor("b", "BF16", (4,), 8, start + 16)),
    )


def test_agrees_with_the_reference_writer(tmp_path: Path) -> None:
    numpy = pytest.importorskip("safetensors.numpy")
    import numpy as np

    arrays = {"w": np.arange(6, dtype=np.float32).reshape(2, 3), "é.x": np.zeros((0, 4), np.int8), "s": np.float16(2.5)}
    path = write(tmp_path / "m.safetensors", numpy.save({k: np.asarray(v) for k, v in arrays.items()}, {"k": '"{,'}))
    found = read_safetensors(path)
    assert found.metadata == {"k": '"{,'}
    assert {tensor.name: tensor.shape for tensor in found.tensors} == {"w": (2, 3), "é.x": (0, 4), "s": ()}
    for tensor in found.tensors:
        raw = path.read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]
        assert raw == np.asarray(arrays[tensor.name]).tobytes()


def test_what_writers_may_do(tmp_path: Path) -> None:
    """Padding, white space, escapes, scalars, empty tensors, any order of keys and tensors, no tensor at all."""
    spaced = json.dumps(
        {"z\u00e9\n": {"data_offsets": [4, 4], "shape": [0, 5], "dtype": "I64"}, "s": entry("F32", [], [0, 4])},
        indent=3,
    ).encode()
    found = read_safetensors(write(tmp_path / "m", safetensors(spaced + b"   \n", b"\0" * 4)))
    assert [(tensor.name, tensor.shape, tensor.nbytes) for tensor in found.tensors] == [
        ("s", (), 4),
        ("zé\n", (0, 5), 0),
    ]
    assert read_safetensors(write(tmp_path / "n", safetensors({}))).tensors == ()
    packed = read_safetensors(write(tmp_path / "p", safetensors({"a": entry("F4", [4], [0, 2])}, b"\0\0")))
    assert packed.tensors[0].nbytes == 2
    assert min(BITS.values()) == 4


def test_thousands_of_tensors_take_no_second(tmp_path: Path) -> None:
    names = {f"model.layers.{i // 100}.mlp.experts.{i % 100}.w": entry("U8", [1], [i, i + 1]) for i in range(20_000)}
    assert len(read_safetensors(write(tmp_path / "m", safetensors(names, b"\0" * 20_000))).tensors) == 20_000


@FUZZ
@given(changes=st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.integers(0, 255)), min_size=1, max_size=6))
def test_fuzz_bytes(tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]]) -> None:
    data = bytearray(GOOD)
    for position, value in changes:
        data[position] = value
    check(tmp_path_factory.getbasetemp() / "fuzz.safetensors", bytes(data))


JSONS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
DIMS = st.lists(st.integers(-1, 1 << 64) | st.integers(0, 4), max_size=9)


@FUZZ
@given(
    header=st.dictionaries(
        st.sampled_from(["a", "b", "__metadata__"]),
        JSONS | st.builds(entry, st.sampled_from([*BITS, "x"]), DIMS, DIMS),
        max_size=3,
    ),
    data=st.binary(max_size=40),
)
def test_fuzz_headers(tmp_path_factory: pytest.TempPathFactory, header: Any, data: bytes) -> None:
    check(tmp_path_factory.getbasetemp() / "fuzz.safetensors", safetensors(header, data))


def check(path: Path, data: bytes) -> None:
    """The invariant: a refusal, or a file whose every byte of data is one tensor's."""
    path.write_bytes(data)
    try:
        found = read_safetensors(path)
    except BadModelFile as error:
        assert error.message.startswith(str(path))  # noqa: PT017 - either outcome is right
        return
    at = 8 + int.from_bytes(data[:8], "little")
    for tensor in found.tensors:
        assert tensor.offset == at
        at += tensor.nbytes
    assert at == len(data)


# -- folders -----------------------------------------------------------------------------------------


def shard(name: str) -> bytes:
    return safetensors({name: entry("U8", [2], [0, 2])}, b"\0\0")


def folder(path: Path, *, index: dict[str, Any] | None = None, **files: bytes) -> Path:
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "auto_map": {"AutoModel": "evil.py"}}))
    if index is not None:
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, data in files.items():
        (path / f"{name}.safetensors").write_bytes(data)
    return path


def test_one_file_and_several(tmp_path: Path) -> None:
    one, several = tmp_path / "one", tmp_path / "several"
    one.mkdir()
    several.mkdir()
    single = read_checkpoint(folder(one, weights=shard("a")))
    assert [tensor.name for _, tensor in single.tensors()] == ["a"]
    assert single.config["model_type"] == "llama"
    index = {"metadata": {"total_size": 4}, "weight_map": {"a": "x-1.safetensors", "b": "x-2.safetensors"}}
    found = read_checkpoint(folder(several, index=index, **{"x-1": shard("a"), "x-2": shard("b")}))
    assert [(file.path.name, tensor.name) for file, tensor in found.tensors()] == [
        ("x-1.safetensors", "a"),
        ("x-2.safetensors", "b"),
    ]


@pytest.mark.parametrize(
    ("index", "files", "expected"),
    [
        (None, {}, "holds no .safetensors"),
        (None, {"a": shard("a"), "b": shard("b")}, "2 .safetensors files need one"),
        ({"weight_map": {"a": "m.safetensors"}}, {}, "No such file"),
        ({"weight_map": {"a": "m.safetensors"}}, {"m": shard("b")}, "weight_map a is m.safetensors"),
        (
            {"weight_map": {"a": "m.safetensors", "b": "n.safetensors"}},
            {"m": shard("a"), "n": GOOD},
            "tensor a is here",
        ),
        ({"weight_map": {}}, {}, "weight_map is dict"),
        ({"weight_map": ["a"]}, {}, "weight_map is list"),
        ({"weight_map": {"a": "../m.safetensors"}}, {}, "weight_map a is ../m.safetensors"),
        ({"weight_map": {"a": 7}}, {}, "weight_map a is 7"),
        ({}, {}, "weight_map is NoneType"),
    ],
)
def test_folders_that_are_no_whole_model(
    tmp_path: Path, index: dict[str, Any] | None, files: dict[str, bytes], expected: str
) -> None:
    with pytest.raises(BadModelFile) as caught:
        read_checkpoint(folder(tmp_path, index=index, **files))
    assert expected in caught.value.message
    assert caught.value.hint


def test_pickles_are_named_and_left_alone(tmp_path: Path) -> None:
    folder(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n")
    with pytest.raises(BadModelFile, match=r"pytorch_model\.bin") as caught:
        read_checkpoint(tmp_path)
    assert "never opened" in (caught.value.hint or "")


def test_names_of_shards_stay_in_the_folder() -> None:
    for name in ("model-00001-of-00002.safetensors", "a.safetensors", "A b.safetensors"):
        assert is_plain_name(name)
    for name in ("/a.safetensors", "..\\a.safetensors", "C:a.safetensors", "a/b.safetensors", ".a.safetensors"):
        assert not is_plain_name(name)
    for name in ("con.safetensors", "NUL.x.safetensors", "a..safetensors", "a.bin", "a.safetensors\n", "é.safetensors"):
        assert not is_plain_name(name)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", "the JSON"),
        (b"[]", "the JSON is list"),
        (b'{"a":1,"a":2}', "a key is a: it occurs twice"),
        (b'{"a":{"b":1,"b":2}}', "a key is b"),
        (b"[" * 100_000, "nested deeply"),
        (b'{"a":' * 100_000, "nested deeply"),
        (b'{"a":' + b"9" * 10_000 + b"}", "the JSON"),
        (b'{"a":"\xff"}', "the JSON"),
    ],
)
def test_configurations_that_are_refused(tmp_path: Path, raw: bytes, expected: str) -> None:
    with pytest.raises(BadModelFile) as caught:
        parse_json(tmp_path / "config.json", raw)
    assert expected in caught.value.message


def test_configurations_are_plain_data_of_bounded_size(tmp_path: Path) -> None:
    path = write(tmp_path / "config.json", b'\xef\xbb\xbf{"a": [1, Infinity], "b": null}')
    assert read_json(path, 100) == {"a": [1, float("inf")], "b": None}
    with pytest.raises(BadModelFile, match="the file is"):
        read_json(path, 10)
    with pytest.raises(BadModelFile, match="folder"):
        read_index(tmp_path)
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.json")
        with pytest.raises(BadModelFile, match="pipe"):
            read_json(tmp_path / "pipe.json", 10)
