"""Which tokens have a role, which end an answer, which are shown: what a vocabulary says, and what it forgets to say.

Files leave much of it out; llama.cpp then goes by the tokens' texts, and so does this, by the same texts.
Source: llama-vocab.cpp of llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from edgellm.formats.vocabulary import CONTROL, NORMAL, USER_DEFINED, Vocabulary

_TURN_ENDS: Final = (
    *("<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>", "<EOT>", "_<EOT>"),
    *("[EOT]", "<｜end▁of▁sentence｜>", "<end_of_utterance>"),
)
_ENDS: Final = (
    *_TURN_ENDS,
    *("<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "</s>", "<|eom_id|>", "[EOS]", "<eos>", "<turn|>"),
    *("<|tool_response>", "[e~["),
)
# role -> the texts by which it is found when the file does not name it. "fim": filling in the middle.
_BY_TEXT: Final[dict[str, tuple[str, ...]]] = {
    "eot": _TURN_ENDS,
    "eom": ("<|eom_id|>",),
    "fim_pre": (
        *("<|fim_prefix|>", "<fim-prefix>", "<fim_prefix>", "<｜fim▁begin｜>", "<PRE>", "▁<PRE>"),
        *("<|code_prefix|>", "<|prefix|>"),
    ),
    "fim_suf": (
        *("<|fim_suffix|>", "<fim-suffix>", "<fim_suffix>", "<｜fim▁hole｜>", "<SUF>", "▁<SUF>"),
        *("<|code_suffix|>", "<|suffix|>"),
    ),
    "fim_mid": (
        *("<|fim_middle|>", "<fim-middle>", "<fim_middle>", "<｜fim▁end｜>", "<MID>", "▁<MID>"),
        *("<|code_middle|>", "<|middle|>"),
    ),
    "fim_pad": ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"),
    "fim_rep": ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    "fim_sep": ("<|file_sep|>",),
}
_OLD_NAMES: Final = {"fim_pre": "prefix", "fim_suf": "suffix", "fim_mid": "middle"}
_ALWAYS_SHOWN: Final = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")  # of gpt-oss
_SEPARATOR: Final = "seperator"  # so is the key spelt
_DEFAULTS: Final = {
    "llama": {"bos": 1, "eos": 2, "unknown": 0},
    "gpt2": {"bos": 11, "eos": 11},
    "bert": {"bos": 101, "unknown": 100, _SEPARATOR: 102},
}


class SpecialTokens(msgspec.Struct, frozen=True):
    """The kinds of all tokens, corrected, and the tokens with a role. `ends` are those that end an answer."""

    kinds: list[int]
    bos: int | None
    eos: int | None
    unknown: int | None
    separator: int | None
    ends: frozenset[int]


def special_tokens(vocabulary: Vocabulary, ids: Mapping[bytes, int], *, bos_by_default: bool) -> SpecialTokens:
    """`ids`: the vocabulary the other way round. `bos_by_default`: BOS has a number even where the file gives none."""
    kinds = list(vocabulary.types)
    roles = _defaults(vocabulary, bos_by_default) | vocabulary.roles
    for role, texts in _BY_TEXT.items():
        if role not in roles and (old := vocabulary.roles.get(_OLD_NAMES.get(role, ""))) is not None:
            roles[role] = old
        found = None if role in roles else _first(texts, ids)
        if found is not None:
            roles[role] = found
            kinds[found] = CONTROL
    ends = {roles[role] for role in ("fim_pad", "fim_rep", "fim_sep") if role in roles}
    for text in _ENDS:
        if (end := ids.get(text.encode())) is not None:
            ends.add(end)
            kinds[end] = CONTROL
    for text in _ALWAYS_SHOWN:
        if (shown := ids.get(text.encode())) is not None:
            kinds[shown] = USER_DEFINED
    ends |= {roles[role] for role in ("eos", "eot", "eom") if role in roles}
    _drop_impostors(ends, kinds, ids)
    bos, eos, unknown, separator = (roles.get(role) for role in ("bos", "eos", "unknown", _SEPARATOR))
    return SpecialTokens(kinds, bos, eos, unknown, separator, frozenset(ends))


def _defaults(vocabulary: Vocabulary, bos_by_default: bool) -> dict[str, int]:
    """What counts where the file is silent; numbers beyond the vocabulary do not."""
    said = _DEFAULTS.get(vocabulary.model, {})
    size = len(vocabulary.tokens)
    return {role: token for role, token in said.items() if token < size and (bos_by_default or role != "bos")}


def _first(texts: tuple[str, ...], ids: Mapping[bytes, int]) -> int | None:
    return next((ids[raw] for text in texts if (raw := text.encode()) in ids), None)


def _drop_impostors(ends: set[int], kinds: list[int], ids: Mapping[bytes, int]) -> None:
    """Texts that end answers of one family and not of another, told by the company they keep."""

    def among(text: str) -> bool:
        return ids.get(text.encode()) in ends

    calls = among("<|call|>") or among("<|calls|>")
    if among("<|end|>") and calls and (among("<|return|>") or among("<|flush|>")):
        end = ids[b"<|end|>"]
        ends.discard(end)
        kinds[end] = USER_DEFINED
    if among("</s>") and (among("<|tool_response>") or among("<|plamo:eos|>")):
        end = ids[b"</s>"]
        ends.discard(end)
        kinds[end] = NORMAL
