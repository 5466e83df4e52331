"""DRY's breakers, from texts to tokens: a repetition does not reach over a token that contains one."""

from __future__ import annotations

from weakref import WeakKeyDictionary

from edgellm.contracts.engine import Tokenizer
from edgellm.contracts.request import Sampling
from edgellm.errors import InvalidRequest

DEFAULT = ("\n", ":", '"', "*")  # ends of lines, turns, quotations and emphasis; as llama.cpp's server has them
KEPT = 16  # lists of breakers remembered for a tokenizer

_found: WeakKeyDictionary[Tokenizer, dict[tuple[str, ...], frozenset[int]]] = WeakKeyDictionary()


def breaker_tokens(sampling: Sampling, tokenizer: Tokenizer) -> frozenset[int]:
    """Every token with a breaker in its bytes; none where DRY is off.

    The first look for a list reads the whole vocabulary, which may take half a second; the answer is kept. Any thread
    may ask. Raises InvalidRequest for a breaker that no single token contains: it would be passed over in silence.
    """
    if not sampling.dry_multiplier:
        return frozenset()
    texts = DEFAULT if sampling.dry_breakers is None else sampling.dry_breakers
    known = _found.setdefault(tokenizer, {})
    tokens = known.get(texts)
    if tokens is None:
        tokens = _search(texts, tokenizer, said=sampling.dry_breakers is not None)
        if len(known) >= KEPT:
            known.clear()
        known[texts] = tokens
    return tokens


def _search(texts: tuple[str, ...], tokenizer: Tokenizer, *, said: bool) -> frozenset[int]:
    breakers = [text.encode("utf-8", "replace") for text in texts]
    found: set[int] = set()
    missing = set(breakers)
    for token in range(tokenizer.vocabulary_size):
        piece = tokenizer.token_bytes(token)
        for breaker in breakers:
            if breaker in piece:
                found.add(token)
                missing.discard(breaker)
    for index, breaker in enumerate(breakers):
        if said and breaker in missing:
            raise InvalidRequest(
                f"dry_breakers[{index}] is not contained in any single token of this model",
                hint="give a shorter text: a breaker is found within tokens, not across them",
                param=f"dry_breakers[{index}]",
            )
    return frozenset(found)
