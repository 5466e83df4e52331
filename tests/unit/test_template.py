"""Chat templates as model files carry them: what they render, what they refuse, and what is done about system texts."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest
from at_best import least_cpu_s
from chat_templates import CHATML, GEMMA, LLAMA3, MISTRAL, THINKING

from edgellm.contracts.request import Message, TemplateOptions
from edgellm.engine.template import ChatTemplate, spare_character
from edgellm.errors import BadModelFile, InvalidRequest
from edgellm.formats.gguf import read_model

SYSTEM, USER, ASSISTANT, TOOL = "system", "user", "assistant", "tool"


def talk(*turns: tuple[str, str]) -> list[Message]:
    return [Message(role, content) for role, content in turns]  # type: ignore[arg-type]


def render(source: str, *turns: tuple[str, str], generate: bool = True) -> str:
    template = ChatTemplate(source, "<s>", "</s>", now=lambda: datetime(2025, 3, 9))
    return template.render(talk(*turns), generate)


@pytest.fixture(scope="module")
def smollm2_template(smollm2: Path) -> ChatTemplate:
    return ChatTemplate(read_model(smollm2).metadata["tokenizer.chat_template"], "<|im_start|>", "<|im_end|>")


# -- real ones ---------------------------------------------------------------------------------------


def test_smollm2s_own_template(smollm2_template: ChatTemplate) -> None:
    assert smollm2_template.render(talk((USER, "Hi"), (ASSISTANT, "Hello."), (USER, "Bye"))) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello.<|im_end|>\n"
        "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"
    )
    assert smollm2_template.render(talk((SYSTEM, "Short."), (USER, "Hi"))) == (
        "<|im_start|>system\nShort.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_hundred_messages_take_milliseconds(smollm2_template: ChatTemplate) -> None:
    turns = talk(*[(USER if i % 2 == 0 else ASSISTANT, f"message {i} " + "word " * 80) for i in range(100)])
    assert least_cpu_s(lambda: smollm2_template.render(turns, False), enough=0.05) < 0.05  # about 1 ms
    text = smollm2_template.render(turns, False)
    assert text.count("<|im_end|>") == 101
    assert "message 99 word" in text


def test_headers_trimming_and_the_date() -> None:
    assert render(LLAMA3, (SYSTEM, " Be kind. "), (USER, "\n Hi ")) == (
        "<s><|start_header_id|>system<|end_header_id|>\n\nToday: 09 Mar 2025\nBe kind.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )


def test_a_template_that_puts_the_system_text_into_the_first_turn_itself() -> None:
    assert render(GEMMA, (SYSTEM, "Be kind."), (USER, "Hi"), (ASSISTANT, "Yo"), (USER, "Bye")) == (
        "<s><start_of_turn>user\nBe kind.\n\nHi<end_of_turn>\n<start_of_turn>model\nYo<end_of_turn>\n"
        "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n"
    )


def test_thoughts_in_earlier_answers_are_the_templates_business() -> None:
    text = render(THINKING, (USER, "1+1?"), (ASSISTANT, "<think>\nhm\n</think>\n\n2"), (USER, "sure?"))
    assert text == (
        "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
        "<|im_start|>user\nsure?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_without_a_generation_prompt() -> None:
    assert render(CHATML, (USER, "Hi"), generate=False) == "<|im_start|>user\nHi<|im_end|>\n"


def test_windows_line_endings_of_the_template_are_its_files_and_those_of_a_message_its_text() -> None:
    source = "{% for m in messages %}\r\n{{ m.content }}\r\n{% endfor %}\r\nend"
    assert render(source, (USER, "a\r\nb")) == "a\r\nb\nend"


def test_names_reach_the_template() -> None:
    template = ChatTemplate("{{ messages[0].name }}{{ messages[0].other }}", "", "")
    assert template.render([Message("user", "Hi", "Ada")]) == "Ada"


# -- system texts ------------------------------------------------------------------------------------


def test_where_the_system_role_is_refused_its_text_goes_before_the_first_user_turn() -> None:
    assert render(MISTRAL, (SYSTEM, "Be kind."), (USER, "Hi")) == "<s>[INST] Be kind.\n\nHi [/INST]"


def test_where_it_is_dropped_too() -> None:
    source = "{% for m in messages if m.role != 'system' %}[{{ m.content }}]{% endfor %}"
    assert render(source, (SYSTEM, "Be kind."), (USER, "Hi")) == "[Be kind.\n\nHi]"
    leading_only = "{{ messages[0].content if messages[0].role == 'system' }}|" + source
    assert render(leading_only, (SYSTEM, "A"), (USER, "b"), (ASSISTANT, "c"), (SYSTEM, "D"), (USER, "e")) == (
        "A|[b][c][D\n\ne]"
    )


def test_a_template_that_takes_system_texts_anywhere_gets_them_where_they_are() -> None:
    text = render(CHATML, (USER, "a"), (SYSTEM, "Now in French."), (USER, "b"))
    assert "<|im_start|>system\nNow in French.<|im_end|>" in text


@pytest.mark.parametrize(
    ("turns", "folded"),
    [
        ([(USER, "a"), (SYSTEM, "S")], "<s>[INST] a\n\nS [/INST]"),
        ([(SYSTEM, "S"), (SYSTEM, "T"), (USER, "a")], "<s>[INST] S\n\nT\n\na [/INST]"),
        ([(SYSTEM, "S"), (ASSISTANT, "b"), (USER, "a")], "<s>[INST] S [/INST]b</s>[INST] a [/INST]"),
        ([(SYSTEM, "S")], "<s>[INST] S [/INST]"),
        ([(SYSTEM, ""), (USER, "a")], "<s>[INST] a [/INST]"),
    ],
)
def test_which_user_turn_a_system_text_joins(turns: list[tuple[str, str]], folded: str) -> None:
    assert render(MISTRAL, *turns) == folded


def test_a_refusal_that_only_some_system_texts_meet_is_answered_by_folding_them() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'system' and m.content|length > 20 %}"
        "{{ raise_exception('too long') }}{% endif %}<{{ m.role }}:{{ m.content }}>{% endfor %}"
    )
    assert render(source, (SYSTEM, "short"), (USER, "a")) == "<system:short><user:a>"
    assert render(source, (SYSTEM, "x" * 30), (USER, "a")) == f"<user:{'x' * 30}\n\na>"


def test_an_empty_answer_that_is_refused_is_tried_as_a_space() -> None:
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' and not m.content %}{{ raise_exception('empty') }}"
        "{% endif %}[{{ m.content }}]{% endfor %}"
    )
    assert render(source, (USER, "a"), (ASSISTANT, ""), (USER, "b")) == "[a][ ][b]"
    assert render(CHATML, (USER, "a"), (ASSISTANT, "")).count("assistant\n<|im_end|>") == 1


# -- refusals and failures ---------------------------------------------------------------------------


@pytest.mark.parametrize("source", [MISTRAL, GEMMA])
@pytest.mark.parametrize("first", [(USER, "a"), (SYSTEM, "s")])
def test_a_refusal_says_what_the_template_says(source: str, first: tuple[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="Conversation roles must alternate user/assistant") as caught:
        render(source, first, (USER, "b"), (USER, "c"))
    assert caught.value.param == "messages"
    assert caught.value.hint


def test_a_templates_message_is_shown_without_control_characters_and_not_whole_when_long() -> None:
    with pytest.raises(InvalidRequest) as caught:
        render("{{ raise_exception('\x1b[2Jno\n\u202e' + 'x' * 9999) }}", (USER, "a"))
    assert caught.value.message.isprintable()
    assert 400 < len(caught.value.message) < 600


def test_a_failure_on_this_conversation_is_the_conversations_and_on_any_the_models() -> None:
    source = "{{ messages[0].content }}{% if messages|length > 1 %}\n{{ messages[5].content }}{% endif %}"
    with pytest.raises(InvalidRequest, match="at line 2: list object has no element 5"):
        render(source, (USER, "a"), (ASSISTANT, "b"))
    with pytest.raises(BadModelFile, match="at line 1: 'nothing' is undefined"):
        render("{{ nothing.at.all }}", (USER, "a"), (ASSISTANT, "b"))


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ("{% for m in messages %}", "malformed at line 1: Unexpected end of template"),
        ("a\n{{ 1 | nope }}", "malformed at line 2: No filter named 'nope'"),
        ("{% include 'x' %}", "include, which is not allowed"),
        ("x" * (2**20 + 1), "longer than 1,048,576 characters"),
        ("{{ a }}" * 20_000, "more than 50,000 parts"),
        ("{{ " + "(" * 10_000, "nested too deeply"),
    ],
)
def test_broken_templates_are_the_model_files_fault(source: str, why: str) -> None:
    with pytest.raises(BadModelFile, match=why) as caught:
        ChatTemplate(source, "", "")
    assert "/v1/completions" in (caught.value.hint or "")


# -- what templates use ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ {'b': '<é>', 'a': [1, none]} | tojson }}", '{"b": "<é>", "a": [1, null]}'),
        ("{{ {'b': 1, 'a': 2} | tojson(indent=2, sort_keys=true) }}", '{\n  "a": 2,\n  "b": 1\n}'),
        ("{{ [1, 2] | tojson(separators=(',', ':'), ensure_ascii=true) }}", "[1,2]"),
        ("{% for i in range(9) %}{% if i > 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% for i in range(3) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "02"),
        (
            "{% set ns = namespace(n=0) %}{% for i in [1, 2] %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}",
            "3",
        ),
        (
            "{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}{{ {'a': 1} | items | list }}",
            "a=1[('a', 1)]",
        ),
        ("{{ tools is none }}{{ documents is none }}{{ foo is defined }}{{ foo }}", "TrueTrueFalse"),
        ("{{ bos_token ~ 1 ~ eos_token }}", "<s>1</s>"),
        (
            "{% for x in 'abc' %}{{ loop.index }}{{ loop.previtem }}{{ ',' if not loop.last }}{% endfor %}",
            "1,2a,3b",
        ),
        ("{% for x in [1, 2, 3] if x != 2 %}{{ loop.length }}{{ loop.cycle('a', 'b') }}{% endfor %}", "2a2b"),
        ("{{ ['a', 'b'] | map('upper') | join('+') }}", "A+B"),
        ("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | first }}", "Hi"),
        ("{{ messages | rejectattr('role', 'equalto', 'user') | list | length }}", "0"),
        ("{{ 'a-b'.replace('-', '+').split('+') | last | upper }}{{ ' x '.strip() }}", "Bx"),
        (
            "{{ '%s is %.2f' % ('pi', 3.14159) }} {{ '%02d' | format(7) }} {{ '{}:{x:>3}'.format(1, x=2) }}",
            "pi is 3.14 07 1:  2",
        ),
        ("{{ 'a\\nb' | indent(2) }}{{ 'abc' | replace('b', 'x') }}{{ 'a' | center(3) }}", "a\n  baxc a "),
        (
            "{{ [3, 1, 2] | sort | join }}{{ [1, 2, 3] | sum }}{{ [1, 1] | unique | list }}{{ 7 // 2 }}{{ -7 % 4 }}",
            "1236[1]31",
        ),
        (
            "{{ [1, 2, 3] | batch(2, 0) | list }}{{ [1, 2, 3] | slice(2) | list }}",
            "[[1, 2], [3, 0]][[1, 2], [3]]",
        ),
        (
            "{{ 2.567 | round(1) }}{{ '<' | e }}{{ ('<' | safe) ~ '<' }}{{ '<' + ('<' | safe) }}",
            "2.6&lt;<<<<",
        ),
        ("{% macro f(a, b='z') %}[{{ a }}{{ b }}]{% endmacro %}{{ f(1) }}{{ f(1, b=2) }}", "[1z][12]"),
        ("{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}x{% endcall %}", "<x>"),
        ("{% set x %}a{{ 1 }}{% endset %}{% filter upper %}{{ x }}{% endfilter %}", "A1"),
        (
            "{% for x in [[1, [2]], [3]] recursive %}({{ loop(x) if x is iterable else x }}){% endfor %}",
            "((1)((2)))((3))",
        ),
        (
            "{% for g in [['a', 1], ['b', 2], ['a', 3]] | groupby(0) %}{{ g.grouper ~ g.list | length }}{% endfor %}",
            "a2b1",
        ),
        (
            "{% set a, b = 1, 2 %}{{ a }}{{ b }}{{ 1 if false }}{{ [1, 2][::-1] }}{{ 'abc'[1:] }}",
            "12[2, 1]bc",
        ),
        ("{% if true %}\n  {% set x = 1 %}\n{% endif %}\nx", "x"),
        (
            "{{ 'ab' in 'cab' }}{{ 1 in [1] }}{{ {'a': 1} == {'a': 1} }}{{ 1 < 2 < 3 }}{{ not 1 }}",
            "TrueTrueTrueTrueFalse",
        ),
        ("{{ strftime_now('%Y-%m-%d') }}", "2025-03-09"),
        ("{{ ('<' | e) + '<' }}", "&lt;<"),
        ("{{ {'items': 1}['items'] }}{{ messages[0]['role'] }}{{ messages[0].get('x', 'y') }}", "1usery"),
    ],
)
def test_what_templates_use_works(source: str, text: str) -> None:
    assert render(source, (USER, "Hi")) == text


# -- continuing an answer ----------------------------------------------------------------------------

ANSWER_BEGINS = {
    CHATML: "<|im_start|>assistant\n",
    LLAMA3: "<|start_header_id|>assistant<|end_header_id|>\n\n",
    GEMMA: "<start_of_turn>model\n",
    MISTRAL: " [/INST]",
    THINKING: "<|im_start|>assistant\n",
}


@pytest.mark.parametrize("source", ANSWER_BEGINS)
@pytest.mark.parametrize("begun", ["one, two, ", "\n one", "", " ", "'</think>' is"])
@pytest.mark.parametrize(
    "before", [((USER, "Count"),), ((SYSTEM, "S"), (USER, "a"), (ASSISTANT, "b"), (USER, "c")), ()]
)
def test_an_answer_that_is_continued_is_cut_where_its_text_begins(
    source: str, begun: str, before: tuple[tuple[str, str], ...]
) -> None:
    text = ChatTemplate(source, "<s>", "</s>").render_open(talk(*before, (ASSISTANT, begun)))
    assert text.endswith(ANSWER_BEGINS[source])
    assert text.count("[/INST]") == (source == MISTRAL) * max(1, sum(role == USER for role, _ in before))


@pytest.mark.parametrize(
    "source",
    [
        "{{ messages[0].content }}:{% if add_generation_prompt %}>{% endif %}",
        "{{ messages[0].content }}:{{ messages[-1].content * 2 }}{% if add_generation_prompt %}>{% endif %}",
        "{{ messages[0].content }}:{{ raise_exception('no') if messages[-1].role == 'assistant' }}>",
    ],
)
def test_a_template_that_drops_repeats_or_refuses_the_last_turn_begins_an_answer_instead(source: str) -> None:
    text = ChatTemplate(source, "", "").render_open(talk((USER, "a"), (ASSISTANT, "b")))
    assert text in ("a:>", "a:aa>")


def test_marks_are_characters_the_conversation_does_not_have() -> None:
    assert spare_character(["\ufdd0\ufdd1"]) == "\ufdd2"
    with pytest.raises(InvalidRequest, match="noncharacter"):
        spare_character(map(chr, range(0xFDD0, 0xFDF0)))
    text = ChatTemplate(CHATML, "", "").render_open(talk((USER, "\ufdd0"), (ASSISTANT, "b\ufdd0c")))
    assert text.endswith("\ufdd0<|im_end|>\n<|im_start|>assistant\n")


# -- what tools say ----------------------------------------------------------------------------------


def test_where_the_tool_role_is_refused_or_dropped_its_words_are_a_users() -> None:
    turns = [(USER, "Hi"), (ASSISTANT, "b"), (TOOL, "42"), (TOOL, "43")]
    assert render(MISTRAL, *turns) == "<s>[INST] Hi [/INST]b</s>[INST] 42\n\n43 [/INST]"
    assert render(MISTRAL, (USER, "Hi"), (TOOL, "42")) == "<s>[INST] Hi\n\n42 [/INST]"
    source = "{% for m in messages if m.role in ('user', 'assistant') %}[{{ m.content }}]{% endfor %}"
    assert render(source, *turns, (USER, "so?")) == "[Hi][b][42\n\n43\n\nso?]"


def test_a_template_that_takes_tools_words_gets_them_where_they_are() -> None:
    assert "<|im_start|>tool\n42<|im_end|>" in render(CHATML, (USER, "Hi"), (TOOL, "42"))


# -- options -----------------------------------------------------------------------------------------


def test_options_reach_the_template_but_not_its_own_names() -> None:
    source = "{{ enable_thinking }}{{ effort }}{{ messages[0].content }}{{ bos_token }}{{ tools is none }}"
    template = ChatTemplate(source, "<s>", "</s>")
    options: TemplateOptions = {
        "enable_thinking": False,
        "effort": "low",
        "messages": "x",
        "bos_token": "y",
        "tools": 1,
    }
    assert template.render(talk((USER, "a")), options=options) == "Falselowa<s>True"
    assert template.render(talk((USER, "a"))) == "a<s>True"
