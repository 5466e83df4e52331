"""Model names: the only text that becomes a path in the store."""

from __future__ import annotations

import pytest

from edgellm.errors import InvalidName
from edgellm.library.names import ModelName, name_from_file, parse_name


@pytest.mark.parametrize(
    ("text", "name", "tag"),
    [
        ("smollm2", "smollm2", "latest"),
        ("smollm2:135m", "smollm2", "135m"),
        ("qwen2.5-coder_x:7b-q4_k_m", "qwen2.5-coder_x", "7b-q4_k_m"),
        ("a", "a", "latest"),
        ("0", "0", "latest"),
        ("a" * 64 + ":" + "b" * 64, "a" * 64, "b" * 64),
        ("console:company", "console", "company"),  # not the devices con and com1
    ],
)
def test_names(text: str, name: str, tag: str) -> None:
    assert parse_name(text) == ModelName(name, tag)
    assert str(parse_name(text)) == f"{name}:{tag}"
    assert parse_name(str(parse_name(text))) == parse_name(text)


@pytest.mark.parametrize(
    "text",
    [
        "", " ", ":", "a:", ":a", "a:b:c", "a b", "a\n", "a:b\n", "A", "é", "-a", ".a", "_a", "a" * 65, "a:" + "b" * 65,
        "../../etc/passwd", "/etc/passwd", "..", "a/b", "..\\x", "a\\b", "C:\\x", "c:/x", "\\\\host\\share", "a\0b",
        "~", "a%2fb", "con", "nul.txt", "aux:x", "x:com1", "lpt9.gguf", "a.", "a:b.",
    ],
)  # fmt: skip
def test_what_is_not_a_name(text: str) -> None:
    with pytest.raises(InvalidName) as caught:
        parse_name(text)
    assert caught.value.http_status == 400
    assert caught.value.hint
    assert caught.value.message.isprintable()


def test_upper_case_gets_the_name_that_was_meant() -> None:
    with pytest.raises(InvalidName) as caught:
        parse_name("SmolLM2:135M")
    assert caught.value.hint == "did you mean smollm2:135m?"


def test_a_very_long_name_is_not_repeated_whole() -> None:
    with pytest.raises(InvalidName) as caught:
        parse_name("x" * 100_000)
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1", "smollm2-135m-instruct.q4_1"),
        ("my model (final)", "my-model-final"),
        ("..hidden..", "hidden"),
        ("x" * 100, "x" * 64),
        ("x" * 63 + "-" * 9, "x" * 63),
    ],
)
def test_names_from_files(stem: str, name: str) -> None:
    assert name_from_file(stem) == ModelName(name, "latest")


@pytest.mark.parametrize("stem", ["", "---", "模型", "con", "NUL"])
def test_files_no_name_can_be_made_of(stem: str) -> None:
    assert name_from_file(stem) is None
