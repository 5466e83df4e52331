"""Texts on their way to an embedder's thread."""

from __future__ import annotations

import io

import pytest
from fake_runner import FakeTokenizer

from edgellm.contracts.embedding import EmbedderInfo, EmbedRequest
from edgellm.engine.embedding_worker import EmbeddingWorker
from edgellm.engine.prompt import LONG
from edgellm.engine.worker_base import Pipe
from edgellm.errors import ContextExceeded


class Never(FakeTokenizer):
    def encode(self, text: str, *, special: bool) -> list[int]:
        assert len(text) <= LONG
        return super().encode(text, special=special)


@pytest.mark.parametrize(("texts", "param"), [(("x" * 200_000,), "input"), (("a", "x" * 200_000), "input[1]")])
def test_what_cannot_fit_is_refused_before_it_is_tokenised(texts: tuple[str, ...], param: str) -> None:
    worker = EmbeddingWorker(Pipe(io.BufferedReader(io.BytesIO()), io.BytesIO()))
    worker._info = EmbedderInfo("fake", 512, 4, 512, 8)
    worker._tokenizer = Never()
    worker._model = "tiny"
    with pytest.raises(ContextExceeded, match=r"has at least [\d,]+ tokens; tiny takes at most 512") as refused:
        worker._encode(EmbedRequest(id="one", model="tiny", inputs=texts))
    assert refused.value.param == param
