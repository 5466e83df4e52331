"""Models in several files: complete and of one piece, or a message that says what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from gguf_files import I32, STRING, U16, Key, Tensor, build, key, model_keys

from edgellm.contracts.engine import ModelFile
from edgellm.errors import BadModelFile
from edgellm.formats.gguf import read_model
from edgellm.formats.splits import Part, join, part_names, part_of, part_paths

TENSOR_SETS: tuple[tuple[Tensor, ...], ...] = ((), (("a", 0, (4,)), ("b", 0, (8,))), (("c", 0, (2, 2)),))


def split_keys(number: int, count: int = 3, tensors: int = 3) -> list[Key]:
    return [
        key("split.no", U16, number),
        key("split.count", U16, count),
        key("split.tensors.count", I32, tensors),
    ]


def part(folder: Path, number: int, *extra: Key, count: int = 3, tensors: int = 3) -> ModelFile:
    """One of three parts, as gguf-split writes them: the model's own metadata in the first only."""
    own = model_keys() if number == 0 else []
    path = folder / f"model-{number + 1:05d}-of-{count:05d}.gguf"
    path.write_bytes(build([*own, *extra, *split_keys(number, count, tensors)], TENSOR_SETS[number % 3]))
    return read_model(path)


def test_three_parts_are_one_model_in_any_order(tmp_path: Path) -> None:
    first, second, third = (part(tmp_path, number) for number in range(3))
    assert part_of(second) == Part(1, 3, 3)
    assert second.architecture == ""
    model = join([third, first, second])
    assert (model.path, model.more) == (first.path, (second.path, third.path))
    assert model.architecture == "llama"
    assert model.size == first.size + second.size + third.size
    assert [(tensor.name, tensor.file) for tensor in model.tensors] == [("a", 1), ("b", 1), ("c", 2)]
    files = (model.path, *model.more)
    for tensor in model.tensors:
        data = files[tensor.file].read_bytes()[tensor.offset : tensor.offset + tensor.nbytes]
        assert set(data) == {1} if tensor.name != "b" else {2}


def test_a_model_in_one_file_stays_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build(model_keys(), (("a", 0, (4,)),)))
    model = read_model(path)
    assert part_of(model) is None
    assert join([model]) is model


def test_names() -> None:
    names = ["big-Q4-00001-of-00003.gguf", "big-Q4-00002-of-00003.gguf", "big-Q4-00003-of-00003.gguf"]
    assert part_names(names[1]) == names
    for other in ("big.gguf", "big-00004-of-00003.gguf", "big-00000-of-00003.gguf", "big-1-of-3.gguf"):
        assert part_names(other) is None
    assert part_paths(Path("/x") / names[2]) == [Path("/x") / name for name in names]
    assert part_paths(Path("/x/big.gguf")) == [Path("/x/big.gguf")]


def refused(parts: list[ModelFile]) -> str:
    with pytest.raises(BadModelFile) as caught:
        join(parts)
    assert caught.value.hint
    return caught.value.message


def test_incomplete_and_mixed_sets_are_refused(tmp_path: Path) -> None:
    first, second, third = (part(tmp_path, number) for number in range(3))
    assert "missing of these parts: 2, 3" in refused([first])
    assert "split.no is 1" in refused([first, second, second, third])
    other = tmp_path / "other"
    other.mkdir()
    assert "part of another model" in refused([first, second, part(other, 2, count=4)])
    alone = tmp_path / "m.gguf"
    alone.write_bytes(build(model_keys(), (("a", 0, (4,)),)))
    assert "no part of a split model" in refused([first, second, third, read_model(alone)])
    assert "no part of a split model" in refused([read_model(alone), first])
    few = [part(tmp_path, number, tensors=4) for number in range(3)]
    assert "split.tensors.count is 4: the parts hold 3" in refused(few)
    strange = part(tmp_path, 2, key("general.architecture", STRING, "qwen3"))
    assert "general.architecture is qwen3" in refused([first, second, strange])


def test_a_tensor_in_two_parts_is_refused(tmp_path: Path) -> None:
    first, second = part(tmp_path, 0, count=2, tensors=4), part(tmp_path, 1, count=2, tensors=4)
    path = tmp_path / "again.gguf"
    path.write_bytes(build([*model_keys(), *split_keys(0, 2, 4)], TENSOR_SETS[1]))
    assert "it is in" in refused([read_model(path), second])
    assert first.tensors == ()


@pytest.mark.parametrize(
    ("keys", "field"),
    [
        ([key("split.count", U16, 3)], "split.no is absent"),
        ([key("split.count", I32, -2)], "split.count is -2"),
        ([key("split.count", STRING, "2")], "split.count is 2"),
        ([key("split.count", U16, 3), key("split.no", U16, 3)], "split.no is 3"),
        ([key("split.count", U16, 3), key("split.no", U16, 0)], "split.tensors.count is absent"),
    ],
)
def test_numbers_out_of_range(tmp_path: Path, keys: list[Key], field: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(build([*model_keys(), *keys], (("a", 0, (4,)),)))
    with pytest.raises(BadModelFile, match=field):
        part_of(read_model(path))
