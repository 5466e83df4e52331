"""EmbeddingCore on a made-up engine: turns, limits, cancelling, failures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from edgellm.contracts.embedding import EmbedderInfo, EmbedRequest
from edgellm.contracts.events import Embedded, Event, Failed, Finished, Started
from edgellm.engine.embedding import LARGEST_ANSWER, EmbeddingCore
from edgellm.engine.limits import Limits
from edgellm.errors import GenerationFailed


class FakeEmbedder:
    """A text's vector counts its tokens' ids; calls are remembered."""

    def __init__(self, dimensions: int = 3) -> None:
        self.info = EmbedderInfo("fake", 8, dimensions, 16, 4, before=(1,), after=(2,))
        self.calls: list[list[tuple[int, ...]]] = []
        self.broken = False

    def embed(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
        assert sum(map(len, texts)) <= self.info.batch_tokens
        assert len(texts) <= self.info.batch_texts
        if self.broken:
            raise GenerationFailed("the engine says no")
        self.calls.append([tuple(text) for text in texts])
        rows = [[sum(text), len(text), *[0] * (self.info.dimensions - 2)] for text in texts]
        return np.array([[np.nan] * self.info.dimensions if 666 in t else r for t, r in zip(texts, rows, strict=True)])

    def close(self) -> None: ...


def ask(name: str, count: int = 1, priority: int = 0) -> EmbedRequest:
    return EmbedRequest(id=name, model="fake", inputs=("",) * count, priority=priority)


def run(core: EmbeddingCore) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    while not core.idle:
        for name, event in core.step():
            found.setdefault(name, []).append(event)
    return found


def test_vectors_have_length_one_and_keep_their_order() -> None:
    core = EmbeddingCore("fake", FakeEmbedder())
    begun = core.add(ask("a", 3), [[3], [4], [5, 6]])
    assert begun == [("a", Started(4, 0, 0))]
    vectors, finished = run(core)["a"]
    assert isinstance(vectors, Embedded)
    assert isinstance(finished, Finished)
    rows = np.frombuffer(vectors.vectors, "<f4").reshape(3, vectors.dimensions)
    assert np.linalg.norm(rows, axis=1) == pytest.approx([1, 1, 1])
    assert (rows[:, 0] / rows[:, 1]).tolist() == pytest.approx([3, 4, 11 / 2])
    assert finished.usage.prompt_tokens == 4


def test_one_text_does_not_wait_for_two_thousand() -> None:
    engine = FakeEmbedder()
    core = EmbeddingCore("fake", engine)
    core.add(ask("many", 2000), [[1]] * 2000)
    core.add(ask("one"), [[9]])
    names = [name for name, _ in core.step()]
    assert names == ["one", "one"]
    assert engine.calls[0] == [(1,), (9,), (1,), (1,)]
    assert len(run(core)["many"]) == 2


def test_the_urgent_goes_first() -> None:
    engine = FakeEmbedder()
    core = EmbeddingCore("fake", engine)
    core.add(ask("later", 4), [[1] * 8] * 4)
    core.add(ask("urgent", 2, priority=-1), [[2] * 8] * 2)
    core.step()
    assert [text[0] for text in engine.calls[0]] == [2, 1]


def test_what_is_cancelled_is_not_computed() -> None:
    engine = FakeEmbedder()
    core = EmbeddingCore("fake", engine)
    core.add(ask("a", 100), [[1]] * 100)
    core.step()
    core.cancel("a")
    core.cancel("a")
    assert core.idle
    assert core.step() == []
    assert len(engine.calls) == 1


def test_no_number_fails_that_request_alone() -> None:
    core = EmbeddingCore("fake", FakeEmbedder())
    core.add(ask("bad", 2), [[1], [666]])
    core.add(ask("good"), [[5]])
    found = run(core)
    assert [type(event) for event in found["bad"]] == [Failed]
    assert [type(event) for event in found["good"]] == [Embedded, Finished]


def test_a_vector_of_noughts_stays_one() -> None:
    engine = FakeEmbedder()
    engine.embed = lambda texts: np.zeros((len(texts), 3), np.float32)  # type: ignore[method-assign]
    core = EmbeddingCore("fake", engine)
    core.add(ask("a"), [[1]])
    vectors = run(core)["a"][0]
    assert isinstance(vectors, Embedded)
    assert vectors.vectors == bytes(12)


def test_refusals() -> None:
    core = EmbeddingCore("fake", FakeEmbedder(), limits=Limits(queue_requests=1))
    refused = core.add(ask("long", 2), [[1], [1] * 9])
    assert isinstance(refused[0][1], Failed)
    assert (refused[0][1].error.code, refused[0][1].error.param) == ("context_length_exceeded", "input[1]")
    core.add(ask("first"), [[1]])
    second = core.add(ask("second"), [[1]])[0][1]
    assert isinstance(second, Failed)
    assert second.error.code == "overloaded"


def test_an_answer_must_fit_in_a_frame() -> None:
    wide = EmbeddingCore("fake", FakeEmbedder(LARGEST_ANSWER // 4))
    assert isinstance(wide.add(ask("a", 2), [[1], [1]])[0][1], Failed)


def test_an_engine_that_fails_ends_everything_once() -> None:
    engine = FakeEmbedder()
    core = EmbeddingCore("fake", engine)
    core.add(ask("a"), [[1]])
    engine.broken = True
    with pytest.raises(GenerationFailed) as caught:
        core.step()
    assert [name for name, _ in core.fail_all(caught.value)] == ["a"]
    assert core.idle
    assert core.step_started == 0


def test_what_a_call_takes_is_predicted_from_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else whoever watches the worker takes a long call of a slow machine for one that hangs."""
    clock, predicted = 0.0, []
    costs = iter([30.0, 0.2, 4.0, 0.5])  # the first reads from a disk

    class Slow(FakeEmbedder):
        def embed(self, texts: Sequence[Sequence[int]]) -> npt.NDArray[np.float32]:
            nonlocal clock
            clock += next(costs)
            predicted.append(core.step_predicted)
            return super().embed(texts)

    monkeypatch.setattr("edgellm.engine.embedding.time.monotonic", lambda: clock)
    core = EmbeddingCore("fake", Slow())
    core.warm_up()  # twice two tokens
    core.add(ask("a"), [[3] * 8])
    run(core)
    core.add(ask("b"), [[3]])
    run(core)
    assert predicted[2:] == pytest.approx([8 * 0.1, 1 * 0.5])
