"""The GGUF reader: right on real files, and never anything but a ModelFile or a BadModelFile on any bytes at all."""

from __future__ import annotations

import os
import struct
import tracemalloc
from pathlib import Path

import pytest
from at_best import at_best, least_cpu_s
from gguf_files import (
    ARRAY,
    BOOL,
    F32,
    STRING,
    TENSORS,
    U8,
    U32,
    U64,
    array,
    build,
    header,
    key,
    model_keys,
    string,
    tensor_info,
    tiny,
)
from hypothesis import example, given, settings
from hypothesis import strategies as st
from malformed import HUGE, counted

from edgellm.contracts.engine import ModelFile
from edgellm.errors import BadModelFile
from edgellm.formats import gguf, gguf_cursor
from edgellm.formats.gguf import read_model

ARCH = key("general.architecture", STRING, "llama")


def write(folder: Path, data: bytes) -> Path:
    path = folder / "model.gguf"
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("which", ["smollm2", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_agrees_with_the_reference_reader_on_real_files(which: str, request: pytest.FixtureRequest) -> None:
    from gguf import GGUFReader

    path: Path = request.getfixturevalue(which)
    model, reference = read_model(path), GGUFReader(path)
    assert [(t.name, t.type, t.shape, t.nbytes, t.offset) for t in model.tensors] == [
        (t.name, t.tensor_type.name, tuple(t.shape.tolist()), int(t.n_bytes), int(t.data_offset))
        for t in reference.tensors
    ]
    for name, value in model.metadata.items():
        assert reference.fields[name].contents() == value
    missing = {name for name in reference.fields if not name.startswith("GGUF.")} - set(model.metadata)
    assert missing <= {"tokenizer.ggml.tokens", "tokenizer.ggml.token_type", "tokenizer.ggml.merges"} | {
        "tokenizer.ggml.scores"
    }
    assert model.size == path.stat().st_size


def test_a_large_vocabulary_is_read_in_milliseconds(gemma3: Path) -> None:
    """262,144 tokens: no more is done than to step over them, 0.02 s where nothing else runs."""
    count, length = 262_144, struct.Struct("<Q")
    tokens = (length.pack(7) + b"a token") * count

    def step_over() -> None:
        at = 0
        for _ in range(count):
            at += 8 + length.unpack_from(tokens, at)[0]

    def longer() -> float:
        return least_cpu_s(lambda: read_model(gemma3)) / least_cpu_s(step_over)

    assert at_best(longer, enough=2) < 2


def test_reads_every_field_of_a_tiny_file(tmp_path: Path) -> None:
    path = write(tmp_path, tiny())
    model = read_model(path)
    assert model.path == path
    assert model.architecture == "llama"
    assert model.metadata == {
        "general.architecture": "llama",
        "general.name": "Tiny",
        "general.file_type": 3,
        "llama.context_length": 128,
        "llama.block_count": 2,
        "tokenizer.ggml.add_bos_token": True,
        "general.languages": ["en", "fr"],
        "tokenizer.chat_template": "{{ messages }}",
    }
    first, second = model.tensors
    assert (first.name, first.type, first.shape, first.nbytes) == ("token_embd.weight", "Q4_1", (64, 8), 320)
    assert (second.name, second.type, second.shape, second.nbytes) == (
        "output_norm.weight",
        "F32",
        (64,),
        256,
    )
    data = path.read_bytes()
    assert data[first.offset : first.offset + first.nbytes] == b"\1" * 320
    assert data[second.offset : second.offset + second.nbytes] == b"\2" * 256


def test_version_2_and_other_alignments(tmp_path: Path) -> None:
    assert read_model(write(tmp_path, tiny(version=2))).architecture == "llama"
    keys = [ARCH, key("general.alignment", U32, 256)]
    model = read_model(write(tmp_path, build(keys, TENSORS, alignment=256)))
    assert [tensor.offset % 256 for tensor in model.tensors] == [0, 0]


def test_keeps_short_arrays_and_leaves_out_long_ones(tmp_path: Path) -> None:
    keys = [
        ARCH,
        array("strings.kept", STRING, ["x"] * 64),
        array("strings.walked", STRING, ["x"] * 65),
        array("layers.kept", U32, list(range(1024))),
        array("layers.walked", U32, list(range(1025))),
        array("flags", BOOL, [True, False]),
        array("empty", U8, []),
    ]
    metadata = read_model(write(tmp_path, build(keys, TENSORS))).metadata
    assert set(metadata) == {"general.architecture", "strings.kept", "layers.kept", "flags", "empty"}
    assert metadata["layers.kept"] == list(range(1024))
    assert metadata["flags"] == [True, False]


MALFORMED = {
    "empty": (b"", "0 bytes"),
    "magic": (b"GGML" + tiny()[4:], "is no GGUF file: it begins with 'GGML', not with 'GGUF'"),
    "version 1": (b"GGUF" + struct.pack("<I", 1) + tiny()[8:], "version is 1"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + tiny()[8:], "big-endian"),
    "keys 2^64-1": (header(0, HUGE) + b"\0" * 64, f"key count is {HUGE}"),
    "tensors 2^64-1": (header(HUGE, 0) + b"\0" * 64, f"tensor count is {HUGE}"),
    "key length": (header(0, 1) + struct.pack("<Q", 1 << 40) + b"\0" * 64, f"key 0 is {1 << 40}"),
    "key not utf-8": (counted([ARCH, key(b"\xff\xfe", U32, 1)]), "not valid UTF-8"),
    "duplicate key": (counted([ARCH, key("a", U32, 1), key("a", U32, 1)]), "key 2 is a: it occurs twice"),
    "value type": (counted([ARCH, string("a") + struct.pack("<I", 13)]), "type of a is 13"),
    "flag at the end": (
        header(0, 1) + string("a") + struct.pack("<I", BOOL),
        "a is byte 37: the header ends",
    ),
    "number at the end": (
        header(0, 1) + string("a") + struct.pack("<IH", U32, 1),
        "a is byte 37: the header ends",
    ),
    "string length": (
        counted([ARCH, string("a") + struct.pack("<IQ", STRING, 1 << 50)]),
        f"length of a is {1 << 50}",
    ),
    "array length": (
        counted([ARCH, string("a") + struct.pack("<IIQ", ARRAY, U32, 1 << 61)]),
        f"length of a is {1 << 61}",
    ),
    "array of arrays": (
        counted([ARCH, string("a") + struct.pack("<IIQ", ARRAY, ARRAY, 1)]),
        "arrays of arrays",
    ),
    "array type": (counted([ARCH, string("a") + struct.pack("<IIQ", ARRAY, 99, 1)]), "type of a is 99"),
    "string in array": (
        counted([ARCH, string("a") + struct.pack("<IIQ", ARRAY, STRING, 100) + struct.pack("<Q", HUGE) * 100]),
        "a string of a",
    ),
    "last string in array": (
        counted(
            [
                ARCH,
                string("a") + struct.pack("<IIQ", ARRAY, STRING, 65) + b"\0" * 512 + struct.pack("<Q", 1 << 20),
            ]
        ),
        "a string of a",
    ),
    "no architecture": (counted([key("a", U32, 1)]), "general.architecture is absent"),
    "architecture": (counted([key("general.architecture", STRING, "../x")]), "general.architecture is ../x"),
    "architecture type": (counted([key("general.architecture", U32, 7)]), "general.architecture is 7"),
    "alignment 0": (counted([ARCH, key("general.alignment", U32, 0)]), "general.alignment is 0"),
    "alignment 33": (counted([ARCH, key("general.alignment", U32, 33)]), "general.alignment is 33"),
    "alignment type": (counted([ARCH, key("general.alignment", BOOL, True)]), "general.alignment is True"),
    "duplicate tensor": (
        counted([ARCH], [tensor_info("t", 0, [4], 0), tensor_info("t", 0, [4], 32)]),
        "name of tensor 1 is t: it occurs twice",
    ),
    "tensor name": (counted([ARCH], [tensor_info("t" * 65, 0, [4], 0)]), "name of tensor 0 is 65"),
    "dimensions": (counted([ARCH], [tensor_info("t", 0, [1] * 5, 0)]), "tensor t dimension count is 5"),
    "zero dimension": (counted([ARCH], [tensor_info("t", 0, [4, 0], 0)]), "tensor t shape is (4, 0)"),
    "shape past 2^63": (counted([ARCH], [tensor_info("t", 0, [1 << 32, 1 << 31], 0)]), "tensor t shape"),
    "shape wraps to 0": (counted([ARCH], [tensor_info("t", 0, [1 << 32, 1 << 32], 0)]), "tensor t shape"),
    "row not whole blocks": (counted([ARCH], [tensor_info("t", 3, [33], 0)]), "multiples of 32"),
    "unknown tensor type": (counted([ARCH], [tensor_info("t", 77, [32], 0)]), "tensor t type is 77"),
    "removed tensor type": (counted([ARCH], [tensor_info("t", 31, [32], 0)]), "Q4_0_4_4 was removed"),
    "unaligned offset": (counted([ARCH], [tensor_info("t", 0, [4], 8)]), "tensor t offset is 8"),
    "offset past the end": (counted([ARCH], [tensor_info("t", 0, [4], 1 << 40)]), "tensor t data"),
    "offset wraps": (counted([ARCH], [tensor_info("t", 0, [4], HUGE - 31)]), "tensor t data"),
    "data cut short": (tiny()[:-1], "tensor output_norm.weight data"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_files_are_named_errors_at_once(case: str, tmp_path: Path) -> None:
    data, expected = MALFORMED[case]
    path = write(tmp_path, data)
    tracemalloc.start()
    with pytest.raises(BadModelFile) as caught:
        read_model(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert str(path) in caught.value.message
    assert expected in caught.value.message
    assert caught.value.hint
    assert peak < 1 << 20


def test_text_from_the_file_reaches_no_terminal_raw(tmp_path: Path) -> None:
    name = "\x1b]52;c;aGk=\x07\u202e"
    with pytest.raises(BadModelFile) as caught:
        read_model(write(tmp_path, counted([ARCH, key(name, U32, 1), key(name, U32, 1)])))
    assert "\\x1b]52" in caught.value.message
    assert caught.value.message.isprintable()


def test_every_prefix_of_a_file_is_refused(tmp_path: Path) -> None:
    data = tiny()
    for length in [*range(0, len(data), 7), len(data) - 1]:
        with pytest.raises(BadModelFile):
            read_model(write(tmp_path, data[:length]))


def test_size_limits_hold_time_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that are consistent and as large as they say, and would still take too much to walk or keep."""
    vocabulary = [ARCH, array("a", STRING, [""] * 1000)]
    monkeypatch.setattr(gguf_cursor, "MAX_WALKED", 999)
    with pytest.raises(BadModelFile, match="more than 999 strings"):
        read_model(write(tmp_path, build(vocabulary, TENSORS)))
    monkeypatch.setattr(gguf_cursor, "MAX_KEPT", 1000)
    short = [array(f"a{i}", F32, [0.0] * 600) for i in range(2)]
    with pytest.raises(BadModelFile, match="more than 1000 values"):
        read_model(write(tmp_path, build([ARCH, *short], TENSORS)))
    monkeypatch.setattr(gguf_cursor, "MAX_KEPT_BYTES", 1000)
    long = [key("a", STRING, "x" * 600), key("b", STRING, "x" * 600)]
    with pytest.raises(BadModelFile, match="length of b is 600: there is room for"):
        read_model(write(tmp_path, build([ARCH, *long], TENSORS)))
    monkeypatch.setattr(gguf, "MAX_TENSORS", 1)
    with pytest.raises(BadModelFile, match="tensor count is 2: there is room for 1"):
        read_model(write(tmp_path, tiny()))


def test_a_string_of_gigabytes_in_a_sparse_file_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path, header(0, 2) + ARCH + string("a") + struct.pack("<IQ", STRING, 3 << 30))
    os.truncate(path, 4 << 30)
    tracemalloc.start()
    with pytest.raises(BadModelFile, match=f"length of a is {3 << 30}"):
        read_model(path)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.gguf"
    odd = [tmp_path, tmp_path / "absent.gguf", Path("/dev/zero"), Path("bad\0name")]
    if hasattr(os, "mkfifo"):
        os.mkfifo(pipe)
        odd.append(pipe)
    for path in odd:
        with pytest.raises(BadModelFile) as caught:  # and not at the end of what has none
            read_model(path)
        assert str(path) in caught.value.message


def check(path: Path, data: bytes) -> None:
    """The invariant: a refusal, or a model whose every part lies in the file."""
    path.write_bytes(data)
    try:
        model = read_model(path)
    except BadModelFile as error:
        assert error.message.startswith(str(path))  # noqa: PT017 - either outcome is right
        return
    assert isinstance(model, ModelFile)
    for tensor in model.tensors:
        assert 0 < tensor.offset <= tensor.offset + tensor.nbytes <= len(data)


VALID = build([*model_keys()[:6], array("a.b", STRING, ["ab"] * 65), array("c", F32, [1.0] * 3)], TENSORS)
FUZZ = settings(max_examples=400)
INTERESTING = [struct.pack("<Q", number) for number in (0, HUGE, 1 << 63, (1 << 63) - 1, 1 << 32, 65, 1024)]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz") / "model.gguf"


@FUZZ
@given(changes=st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), min_size=1, max_size=8))
def test_fuzz_bytes(scratch: Path, changes: list[tuple[int, int]]) -> None:
    data = bytearray(VALID)
    for position, value in changes:
        data[position] = value
    check(scratch, bytes(data))


@FUZZ
@given(
    position=st.integers(0, len(VALID) - 8),
    value=st.sampled_from(INTERESTING) | st.binary(min_size=8, max_size=8),
)
def test_fuzz_integers(scratch: Path, position: int, value: bytes) -> None:
    check(scratch, VALID[:position] + value + VALID[position + 8 :])


@FUZZ
@given(start=st.integers(0, len(VALID)), length=st.integers(0, 64), insert=st.binary(max_size=64))
def test_fuzz_splices(scratch: Path, start: int, length: int, insert: bytes) -> None:
    check(scratch, VALID[:start] + insert + VALID[start + length :])


@FUZZ
@given(tail=st.binary(max_size=200))
@example(tail=b"")
def test_fuzz_from_nothing(scratch: Path, tail: bytes) -> None:
    check(scratch, b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + tail)


def test_numbers_of_all_widths(tmp_path: Path) -> None:
    keys = [ARCH, key("u64", U64, HUGE), key("f32", F32, -0.5), key("u8", U8, 255)]
    metadata = read_model(write(tmp_path, build(keys, TENSORS))).metadata
    assert (metadata["u64"], metadata["f32"], metadata["u8"]) == (HUGE, -0.5, 255)
