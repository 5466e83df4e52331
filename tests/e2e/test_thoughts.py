"""A real model that thinks before it answers, as far as a small one can be brought to: by examples, and by a template
of that kind in its file. Its tags are cut into several tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from real_daemon import MODEL, home_with_model, serving

from edgellm.formats.gguf import read_model

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if enable_thinking %}<think>\n{% endif %}{% endif %}"
    "{# thoughts end in </think>"
)
EXAMPLES = [
    ("2 + 2?", "<think>\nTwo and two.\n</think>\n\n4"),
    ("3 + 1?", "<think>\nThree and one.\n</think>\n\n4"),
    ("5 + 1?", "<think>\nFive and one.\n</think>\n\n6"),
    ("1 + 1?", "<think>\nOne and one.\n</think>\n\n2"),
]
ASK: Any = [
    {"role": role, "content": content}
    for pair in EXAMPLES
    for role, content in zip(("user", "assistant"), pair, strict=True)
] + [{"role": "user", "content": "2 + 1?"}]


@pytest.fixture(scope="module")
def client(starter: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("home")
    file = folder / "thinks.gguf"
    own = read_model(starter).metadata["tokenizer.chat_template"].encode()
    raw = starter.read_bytes()
    assert raw.count(own) == 1
    file.write_bytes(raw.replace(own, TEMPLATE.encode().ljust(len(own) - 2) + b"#}"))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("EDGELLM_CONTEXT", "512")
            with (
                serving(home_with_model(file, folder, patch)) as served,
                openai.OpenAI(base_url=served.client.info.url + "/v1", api_key="unused", timeout=60) as client,
            ):
                yield client
    finally:
        file.unlink()


def ask(client: openai.OpenAI, messages: Any = ASK, **options: Any) -> tuple[str | None, str | None]:
    """Thoughts and answer; streamed, they are the same."""
    extra = {"chat_template_kwargs": options.pop("template", {})}
    asked: Any = {
        "model": MODEL,
        "messages": messages,
        "temperature": 0,
        "max_tokens": 40,
        "extra_body": extra,
        **options,
    }
    message = client.chat.completions.create(**asked).choices[0].message
    thoughts = (message.model_extra or {}).get("reasoning_content")
    deltas = [chunk.choices[0].delta for chunk in client.chat.completions.create(stream=True, **asked)]
    assert "".join(delta.content or "" for delta in deltas) == message.content
    assert "".join((delta.model_extra or {}).get("reasoning_content", "") for delta in deltas) == (thoughts or "")
    return thoughts, message.content


def test_thoughts_and_answer_apart(client: openai.OpenAI) -> None:
    assert ask(client) == ("Two and one.", "3")


def test_thoughts_that_the_template_opens_because_it_was_told_to(client: openai.OpenAI) -> None:
    assert ask(client, template={"enable_thinking": True}) == ("Two and one.", "3")


def test_stop_strings_end_the_answer_and_not_the_thoughts(client: openai.OpenAI) -> None:
    assert ask(client, stop=["one", "\n"]) == ("Two and one.", "3")
    assert ask(client, stop=["3"]) == ("Two and one.", "")


def test_a_limit_within_the_thoughts_leaves_them_thoughts(client: openai.OpenAI) -> None:
    thoughts, answer = ask(client, max_tokens=6)
    assert "Two and one.".startswith(thoughts or "nothing")
    assert answer == ""


def test_thoughts_and_answer_are_continued_where_they_broke_off(client: openai.OpenAI) -> None:
    assert ask(client, [*ASK, {"role": "assistant", "content": "<think>\nTwo"}]) == (" and one.", "3")
    begun = {"role": "assistant", "content": "<think>\nTwo and one.\n</think>\n\n"}
    assert ask(client, [*ASK, begun]) == (None, "3")
