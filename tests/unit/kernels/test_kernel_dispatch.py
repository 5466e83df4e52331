"""What computes an op, and the reasons."""

from __future__ import annotations

import inspect
import subprocess
import sys

import pytest
import torch
from edgellm_kernels import dispatch, ops
from edgellm_kernels.dispatch import CANDIDATES, Candidate, Case, choose

FAST = Candidate(
    "fast",
    "edgellm_kernels.reference.exact:softmax",
    lambda case: None if case.device == "cuda" and case.rows <= 8 else f"made for up to 8 rows on cuda, not {case}",
    "a test's",
)


def test_the_first_that_applies_is_taken_and_the_others_say_why_not() -> None:
    candidates = {"softmax": (FAST, *CANDIDATES["softmax"])}
    assert choose("softmax", Case("cuda", rows=4), candidates).implementation == "fast"
    slow = choose("softmax", Case("cuda", rows=16), candidates)
    assert slow.implementation == "reference"
    assert slow.reason
    [(name, why)] = slow.refused
    assert name == "fast"
    assert "made for up to 8 rows on cuda" in why


def test_where_nothing_applies_every_reason_is_told() -> None:
    with pytest.raises(LookupError, match="float32 here, not float16"):
        ops.softmax(torch.zeros(1, dtype=torch.float16))
    with pytest.raises(LookupError, match="no op sing; there are dequantise"):
        choose("sing", Case())


def test_every_op_has_a_reference_with_its_own_signature() -> None:
    functions = {
        name: function
        for name, function in inspect.getmembers(ops, inspect.isfunction)
        if function.__module__ == ops.__name__ and not name.startswith("_")
    }
    assert functions.keys() == CANDIDATES.keys()
    for choice in dispatch.explain():
        assert choice.implementation == "reference"
        assert choice.reason
        wanted = inspect.signature(functions[choice.op]).parameters
        assert list(inspect.signature(choice.call).parameters) == list(wanted), choice.op


def test_a_choice_is_remembered_by_case() -> None:
    dispatch.implementation.cache_clear()
    for rows in (5, 6, 8):
        ops.softmax(torch.zeros(rows, 3))
    assert dispatch.implementation.cache_info().misses == 1


def test_what_needs_no_torch_does_not_import_it() -> None:
    code = "import sys, edgellm_kernels.blocks, edgellm_kernels.kv_kinds; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
