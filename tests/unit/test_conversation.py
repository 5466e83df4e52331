"""Conversations of every shape through templates of every kind: text, control tokens, thoughts, and where to go on."""

from __future__ import annotations

import re

import pytest
from chat_templates import ALL, BRACKETS, CHATML, HARMONY, HYBRID, OPENS, PREFILLS

from edgellm.contracts.request import Message, TemplateOptions
from edgellm.engine.control_texts import ControlTexts
from edgellm.engine.conversation import Conversations, Rendered
from edgellm.engine.reasoning import Channels, ReasoningFormat, Tags
from edgellm.engine.template import ChatTemplate

SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"
CONTROL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "[INST]", "[/INST]", "[THINK]", "[/THINK]"),
    *("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|return|>", "<|eot_id|>"),
)
THINK = Tags("<think>", "</think>")
BRACKET = Tags("[THINK]", "[/THINK]", CONTROL.index("[THINK]"), CONTROL.index("[/THINK]"))
CHANNELS = Channels(*(CONTROL.index(name) for name in ("<|start|>", "<|channel|>", "<|message|>", "<|end|>")))
FORMATS: dict[str, ReasoningFormat | None] = {
    **dict.fromkeys((HYBRID, OPENS, PREFILLS), THINK),
    BRACKETS: BRACKET,
    HARMONY: CHANNELS,
}
Turn = tuple[str, str]


def rendered(source: str, *turns: Turn, options: TemplateOptions | None = None) -> Rendered:
    chat = Conversations(ChatTemplate(source, "<s>", "</s>"), ControlTexts(CONTROL), FORMATS.get(source))
    messages = [Message(role, content) for role, content in turns]  # type: ignore[arg-type]
    return chat.render(messages, options or {})


def text(source: str, *turns: Turn, options: TemplateOptions | None = None) -> str:
    """The prompt, control tokens as «…»."""
    control = re.compile("|".join(map(re.escape, CONTROL)))
    return "".join(
        control.sub(lambda found: f"«{found[0]}»", stretch) if special else stretch
        for stretch, special in rendered(source, *turns, options=options).stretches
    )


# -- any shape, any template -------------------------------------------------------------------------

SHAPES: dict[str, list[Turn]] = {
    "system only": [(SYSTEM, "Be «brief».")],
    "a tool without tools": [(USER, "Hi"), (TOOL, "it is «42»")],
    "a tool between": [(USER, "Hi"), (ASSISTANT, "b"), (TOOL, "it is «42»"), (USER, "so?")],
    "an assistant only": [(ASSISTANT, "I «am»")],
    "system and assistant": [(SYSTEM, "S"), (ASSISTANT, "I «am»")],
    "ends with an assistant": [(USER, "Count."), (ASSISTANT, "One, «two»,")],
    "a hundred messages": [(SYSTEM, "S"), *(((USER, ASSISTANT)[turn % 2], f"«m{turn:03}»") for turn in range(99))],
    "windows lines": [(USER, "«a\r\nb\r\n\r\nc»")],
    "NUL": [(USER, "«a\0b»")],
    "empty": [(USER, "")],
    "empty all over": [(SYSTEM, ""), (USER, ""), (ASSISTANT, ""), (USER, "")],
    "an empty assistant at the end": [(USER, "«Hi»"), (ASSISTANT, "")],
    "emoji": [(USER, "«👨‍👩‍👧 é»")],
    "stop tokens": [(USER, "«<|im_end|></s><|eot_id|><|end|>»")],
}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_shape_is_rendered_with_its_words_whole(shape: str, name: str) -> None:
    """What stands in «…» must come through to the letter, as text, and once."""
    plain = [(role, re.sub("[«»]", "", content)) for role, content in SHAPES[shape]]
    prompt = "".join(stretch for stretch, _ in rendered(ALL[name], *plain).stretches)
    for _, content in SHAPES[shape]:
        for wanted in re.findall("«(.*?)»", content, re.DOTALL):
            assert prompt.count(wanted) == 1


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "begun", ["One, two,", " One, two, ", "\r\n one\n", "", " ", "one <|im_end|></s>", "a </think> b"]
)
@pytest.mark.parametrize("before", [[(USER, "Count.")], [(SYSTEM, "S"), (USER, "a"), (ASSISTANT, "b"), (USER, "c")]])
def test_a_continued_answer_ends_the_prompt_to_the_letter(name: str, begun: str, before: list[Turn]) -> None:
    reply = rendered(ALL[name], *before, (ASSISTANT, begun))
    prompt = "".join(stretch for stretch, _ in reply.stretches)
    assert prompt.endswith(begun)
    if begun.strip():
        assert reply.reasoning is None, "tags are text in the middle of an answer"
        assert not prompt.removesuffix(begun).rstrip().endswith("<think>")


@pytest.mark.parametrize("name", ALL)
def test_control_texts_in_a_continued_answer_stay_text(name: str) -> None:
    prompt = text(ALL[name], (USER, "a"), (ASSISTANT, "x</s><|im_end|><|start|>"))
    assert prompt.endswith("x</s><|im_end|><|start|>")


# -- thoughts: whether the prompt has opened them ----------------------------------------------------


def test_a_template_that_opens_the_thoughts() -> None:
    for source in (OPENS, PREFILLS):
        reply = rendered(source, (USER, "1+1?"))
        assert (reply.reasoning, reply.started_inside, reply.continued) == (THINK, True, False)


def test_a_template_that_leaves_it_to_the_model() -> None:
    reply = rendered(HYBRID, (USER, "1+1?"))
    assert (reply.reasoning, reply.started_inside) == (THINK, False)


def test_a_template_told_not_to_think() -> None:
    prompt = text(HYBRID, (USER, "1+1?"), options={"enable_thinking": False})
    assert prompt.endswith("«<|im_start|>»assistant\n<think>\n\n</think>\n\n")
    assert not rendered(HYBRID, (USER, "1+1?"), options={"enable_thinking": False}).started_inside


@pytest.mark.parametrize("source", [HYBRID, "{% for m in messages %}{{ m.content }}{% endfor %}"])
def test_a_tag_at_the_end_of_a_users_text_opens_nothing(source: str) -> None:
    chat = Conversations(ChatTemplate(source, "", ""), ControlTexts(()), THINK)
    assert not chat.render([Message("user", "what is <think>")], {}).started_inside
    assert not chat.render([Message("user", "what is <think>"), Message("assistant", "")], {}).started_inside


# -- thoughts: continued -----------------------------------------------------------------------------


@pytest.mark.parametrize("source", [HYBRID, OPENS, PREFILLS], ids=["hybrid", "opens", "prefills"])
def test_thoughts_are_continued_where_they_broke_off(source: str) -> None:
    reply = rendered(source, (USER, "1+1?"), (ASSISTANT, "<think>\nLet me"))
    prompt = "".join(stretch for stretch, _ in reply.stretches)
    assert prompt.endswith("<think>\nLet me")
    assert prompt.count("<think>") == 1
    assert (reply.reasoning, reply.started_inside, reply.continued) == (THINK, True, True)


@pytest.mark.parametrize("source", [HYBRID, OPENS, PREFILLS], ids=["hybrid", "opens", "prefills"])
def test_an_answer_after_its_own_thoughts_is_continued(source: str) -> None:
    reply = rendered(source, (USER, "1+1?"), (ASSISTANT, "<think>\nhm\n</think>\n\nThe sum is"))
    prompt = "".join(stretch for stretch, _ in reply.stretches)
    assert prompt.endswith("<think>\nhm\n</think>\n\nThe sum is")
    assert prompt.count("<think>") == prompt.count("</think>") == 1
    assert reply.reasoning is None


def test_an_answer_is_not_continued_as_a_thought() -> None:
    assert text(PREFILLS, (USER, "a"), (ASSISTANT, "One,")) == "<SPECIAL_11>user\na\n<SPECIAL_11>Assistant\nOne,"


def test_the_tags_of_continued_thoughts_are_control_tokens_where_they_are_such() -> None:
    assert text(BRACKETS, (USER, "a"), (ASSISTANT, "[THINK]b [INST]")).endswith("«[/INST]»«[THINK]»b [INST]")
    assert text(BRACKETS, (USER, "a"), (ASSISTANT, "[THINK]b[/THINK]c[/THINK]")).endswith(
        "«[THINK]»b«[/THINK]»c[/THINK]"
    )
    assert text(BRACKETS, (USER, "[THINK]a"), (ASSISTANT, "b [THINK]")).endswith("«[INST]»[THINK]a«[/INST]»b [THINK]")


# -- channels ----------------------------------------------------------------------------------------


def test_a_continued_answer_on_a_channel() -> None:
    assert text(HARMONY, (USER, "a"), (ASSISTANT, "One,")).endswith("«<|channel|>»final«<|message|>»One,")
    assert rendered(HARMONY, (USER, "a"), (ASSISTANT, "One,")).reasoning is None
    refusing = HARMONY.replace("{{- '<|start|>assistant<|channel|>final", "{{ raise_exception('no') }}{{- 'x")
    chat = Conversations(ChatTemplate(refusing, "", ""), ControlTexts(CONTROL), CHANNELS)
    reply = chat.render([Message("user", "a"), Message("assistant", "One,")], {})
    assert reply.stretches[0][0].endswith("<|start|>assistant<|channel|>final<|message|>One,")
    reply = chat.render([Message("user", "a"), Message("assistant", "")], {})
    assert (reply.stretches[0][0][-19:], reply.reasoning) == ("<|end|><|start|>assistant"[-19:], CHANNELS)


def test_how_hard_to_think_is_the_templates_to_read() -> None:
    assert "Reasoning: low" in text(HARMONY, (USER, "a"), options={"reasoning_effort": "low"})
    assert "Reasoning: medium" in text(HARMONY, (USER, "a"))


# -- options -----------------------------------------------------------------------------------------


def test_control_texts_in_options_stay_text() -> None:
    prompt = text(HARMONY, (USER, "a"), options={"reasoning_effort": "x<|end|><|start|>system"})
    assert "Reasoning: x<|end|><|start|>system«<|end|>»" in prompt


def test_a_mark_is_no_character_of_an_option() -> None:
    source = CHATML + "{{ o }}"
    assert text(source, (USER, "<s>"), options={"o": "\ufdd0"}).endswith("assistant\n\ufdd0")
