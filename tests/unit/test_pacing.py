"""Text is held back a little, joined, and nothing is lost, late or out of order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from edgellm.contracts.events import ChoiceDone, Finished, Started, TextDelta, Timings, Usage
from edgellm.engine.pacing import Emission, Pacer

END = Finished(Usage(1, 1), Timings(0.0, 0.0, 0.0, 0.0))


def test_the_first_text_goes_at_once_and_what_follows_waits_for_its_interval() -> None:
    pacer = Pacer(0.03)
    assert pacer.add([("a", Started(1, 0, 0))], 1.0, 0.01)
    assert pacer.add([("a", TextDelta("x"))], 1.01, 0.01) == [("a", TextDelta("x"))]
    assert pacer.add([("a", TextDelta("y"))], 1.02, 0.01) == []
    assert pacer.add([("a", TextDelta("z"))], 1.03, 0.01) == [("a", TextDelta("yz"))]


def test_a_long_step_ahead_lets_it_go_before() -> None:
    pacer = Pacer(0.03)
    pacer.add([("a", TextDelta("x"))], 1.0, 0.01)
    assert pacer.add([("a", TextDelta("y"))], 1.01, 0.2) == [("a", TextDelta("y"))]


def test_the_end_takes_along_what_was_held_of_all() -> None:
    pacer = Pacer(1.0)
    pacer.add([("a", TextDelta("1")), ("b", TextDelta("2"))], 1.0, 0.01)
    pacer.add([("a", TextDelta("3")), ("b", TextDelta("4"))], 1.01, 0.01)
    sent = pacer.add([("a", TextDelta("5")), ("a", ChoiceDone("stop")), ("a", END)], 1.02, 0.01)
    assert sent == [("a", TextDelta("35")), ("b", TextDelta("4")), ("a", ChoiceDone("stop")), ("a", END)]


def test_a_cancelled_answer_sends_nothing_more() -> None:
    pacer = Pacer(1.0)
    pacer.add([("a", TextDelta("1")), ("b", TextDelta("1"))], 1.0, 0.01)
    pacer.add([("a", TextDelta("2")), ("b", TextDelta("2"))], 1.01, 0.01)
    pacer.forget("a")
    assert pacer.flush(1.02) == [("b", TextDelta("2"))]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.text(min_size=1, max_size=3), st.floats(0, 0.05)), max_size=40))
def test_nothing_is_lost_and_nothing_waits_longer_than_the_interval(pieces: list[tuple[str, str, float]]) -> None:
    pacer, now, sent = Pacer(0.03), 0.0, list[Emission]()
    held_since: float | None = None
    for index, (name, text, step) in enumerate(pieces):
        now += step
        out = pacer.add([(name, TextDelta(text))], now, pieces[index + 1][2] if index + 1 < len(pieces) else 0.0)
        held_since = None if out else (now if held_since is None else held_since)
        assert held_since is None or now - held_since < 0.03
        sent += out
    sent += pacer.flush(now)
    for name in "abc":
        whole = "".join(e.text for n, e in sent if n == name and isinstance(e, TextDelta))
        assert whole == "".join(text for n, text, _ in pieces if n == name)
