"""What a runner is called with, checked: ValueError where the caller breaks the contract. For engines to call."""

from __future__ import annotations

from collections.abc import Sequence

from edgellm.contracts.runner import Row, RunnerInfo


def check_sequence(sequence: int, info: RunnerInfo) -> None:
    if not 0 <= sequence < info.max_sequences:
        raise ValueError(f"there is no sequence {sequence}: they are numbered 0 to {info.max_sequences - 1}")


def check_length(length: int, sequence: int, lengths: Sequence[int]) -> None:
    """`length` is to be a part of a sequence, at most all of it; `lengths`: of every sequence."""
    if not 0 <= length <= lengths[sequence]:
        raise ValueError(f"sequence {sequence} is {lengths[sequence]} tokens long; {length} is out of range")


def check_rows(rows: Sequence[Row], info: RunnerInfo, lengths: Sequence[int]) -> None:
    """A step as `TokenRunner.submit` takes it; `lengths`: of every sequence, rows in flight included."""
    total = outputs = 0
    seen: set[int] = set()
    for row in rows:
        check_sequence(row.sequence, info)
        length, count = lengths[row.sequence], len(row.tokens) + len(row.draft)
        if not row.tokens:
            raise ValueError(f"sequence {row.sequence} has no tokens in this step")
        if row.sequence in seen:
            raise ValueError(f"sequence {row.sequence} appears twice in one step")
        if row.start != length:
            raise ValueError(f"sequence {row.sequence} is {length} tokens long, not {row.start}")
        if row.start + count > info.context:
            raise ValueError(f"{row.start + count} tokens exceed the context of {info.context}")
        if len(row.draft) > (info.draft_tokens if row.sample is not None else 0):
            raise ValueError(f"sequence {row.sequence} has a draft of {len(row.draft)} tokens: too many")
        seen.add(row.sequence)
        total += count
        outputs += 0 if row.sample is None else 1 + len(row.draft)
    if not 0 < total <= info.batch_tokens:
        raise ValueError(f"a step takes 1 to {info.batch_tokens} tokens, not {total}")
    most = info.max_outputs or info.max_sequences
    if outputs > most:
        raise ValueError(f"a step draws up to {most} tokens, not {outputs}")
