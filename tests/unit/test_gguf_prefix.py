"""Headers of files that lie elsewhere: a beginning says what the whole would, or how much more of it that takes."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from gguf_files import (
    ARRAY,
    BOOL,
    F32,
    STRING,
    TENSORS,
    U32,
    array,
    build,
    header,
    key,
    model_keys,
    string,
    tiny,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from edgellm.contracts.engine import ModelFile
from edgellm.errors import BadModelFile
from edgellm.formats.files import More
from edgellm.formats.gguf import FIRST_READ, read_model, read_prefix

REMOTE = Path("https://host/model.gguf")
FUZZ = settings(max_examples=300)


def fetch(data: bytes, first: int = 1) -> tuple[ModelFile | BadModelFile, int, int]:
    """Ask for more and more of `data` until there is an outcome; requests and bytes it took."""
    have, requests = min(first, len(data)), 1
    while True:
        try:
            found = read_prefix(REMOTE, data[:have], len(data))
        except BadModelFile as error:
            return error, requests, have
        if isinstance(found, ModelFile):
            return found, requests, have
        assert isinstance(found, More)
        assert have < found.total <= len(data)
        have, requests = found.total, requests + 1


def whole(data: bytes, folder: Path) -> ModelFile | BadModelFile:
    path = folder / "model.gguf"
    path.write_bytes(data)
    try:
        return read_model(path)
    except BadModelFile as error:
        return error


def same(one: ModelFile | BadModelFile, other: ModelFile | BadModelFile) -> bool:
    if isinstance(one, ModelFile) and isinstance(other, ModelFile):
        return (one.metadata, one.tensors, one.size) == (other.metadata, other.tensors, other.size)
    if isinstance(one, BadModelFile) and isinstance(other, BadModelFile):
        return one.message.split(": ", 1)[1] == other.message.split(": ", 1)[1] and one.hint == other.hint
    return False


def test_any_beginning_leads_to_the_whole_header(tmp_path: Path) -> None:
    data = tiny()
    expected = whole(data, tmp_path)
    for first in range(0, len(data), 5):
        found, _, _ = fetch(data, first)
        assert same(found, expected)


def test_the_weights_are_never_asked_for() -> None:
    data = build(model_keys(words=3000), [("token_embd.weight", 0, (64, 100_000))])
    found, requests, have = fetch(data, 4096)
    assert isinstance(found, ModelFile)
    assert have < 2 * found.tensors[0].offset
    assert requests <= 2 + math.log2(found.tensors[0].offset / 4096)
    assert found.path == REMOTE


@pytest.mark.parametrize("which", ["smollm2", pytest.param("gemma3", marks=pytest.mark.slow)])
def test_real_files(which: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    path: Path = request.getfixturevalue(which)
    data = path.read_bytes()
    found, requests, have = fetch(data, FIRST_READ)
    assert same(found, read_model(path))
    assert requests <= 6
    assert have <= 16 << 20


@pytest.mark.parametrize(
    "last",
    [
        string("a") + (4).to_bytes(4, "little"),
        string("a") + (7).to_bytes(4, "little"),
        string("a") + (8).to_bytes(4, "little") + (1000).to_bytes(8, "little"),
        array("a", STRING, ["x" * 9] * 99)[:-3],
        array("a", F32, [0.0] * 2000)[:-3],
        array("a", BOOL, [True] * 20)[:-3],
    ],
)
def test_a_value_that_is_cut_asks_for_the_rest(last: bytes) -> None:
    begin = header(0, 3) + key("general.architecture", STRING, "llama") + last
    found = read_prefix(REMOTE, begin, len(begin) + 5000)
    assert isinstance(found, More)
    assert found.total > len(begin)
    with pytest.raises(BadModelFile, match="is"):  # the same bytes, when there is nothing after them
        read_prefix(REMOTE, begin, len(begin))


def test_a_beginning_longer_than_the_file_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="a prefix of 4 bytes of a file of 3"):
        read_prefix(REMOTE, b"GGUF", 3)


def test_promises_of_a_small_beginning_cost_nothing() -> None:
    """Counts are held against the length the server gave, before anything is asked for."""
    huge = header(0, 2) + key("general.architecture", STRING, "llama")
    huge += string("a") + ARRAY.to_bytes(4, "little") + U32.to_bytes(4, "little") + (1 << 61).to_bytes(8, "little")
    with pytest.raises(BadModelFile, match=f"length of a is {1 << 61}"):
        read_prefix(REMOTE, huge, 1 << 40)


VALID = build([*model_keys()[:6], array("a.b", STRING, ["ab"] * 65), array("c", F32, [1.0] * 3)], TENSORS)


@FUZZ
@given(
    changes=st.lists(st.tuples(st.integers(0, len(VALID) - 1), st.integers(0, 255)), max_size=4),
    first=st.integers(0, 900),
)
def test_fuzz(tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int]], first: int) -> None:
    data = bytearray(VALID)
    for position, value in changes:
        data[position] = value
    found, _, _ = fetch(bytes(data), first)
    assert same(found, whole(bytes(data), tmp_path_factory.getbasetemp()))
