"""The radix tree against a dictionary of token lists."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from edgellm.engine.prefix import PrefixTree, common_prefix

TOKENS = st.lists(st.integers(0, 2), max_size=12)  # few distinct tokens: many shared prefixes
KEYS = st.sampled_from(["a", "b"])


def naive(a: list[int], b: list[int]) -> int:
    length = 0
    while length < min(len(a), len(b)) and a[length] == b[length]:
        length += 1
    return length


@given(TOKENS, TOKENS)
def test_common_prefix(a: list[int], b: list[int]) -> None:
    length = naive(a, b)
    assert common_prefix(a, b) == length
    assert common_prefix(a, b, length // 2) == length


class TreeMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.tree = PrefixTree()
        self.held: dict[int, tuple[str, list[int]]] = {}
        self.next = 0

    @rule(tokens=TOKENS, key=KEYS)
    def insert(self, tokens: list[int], key: str) -> None:
        self.tree.insert(self.next, tokens, key)
        self.held[self.next] = (key, list(tokens))
        self.next += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data(), tokens=TOKENS)
    def extend(self, data: st.DataObject, tokens: list[int]) -> None:
        holder = data.draw(st.sampled_from(sorted(self.held)))
        self.tree.extend(holder, tokens)
        self.held[holder][1].extend(tokens)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(sorted(self.held)))
        self.tree.remove(holder)
        del self.held[holder]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def rename(self, data: st.DataObject) -> None:
        holder = data.draw(st.sampled_from(sorted(self.held)))
        self.tree.rename(holder, self.next)
        self.held[self.next] = self.held.pop(holder)
        self.next += 1

    @rule(tokens=TOKENS, key=KEYS)
    def match(self, tokens: list[int], key: str) -> None:
        lengths = {h: naive(tokens, t) for h, (k, t) in self.held.items() if k == key}
        best = max(lengths.values(), default=0)
        length, holders = self.tree.match(tokens, key)
        assert length == best
        assert sorted(holders) == (sorted(h for h, n in lengths.items() if n == best) if best else [])

    @invariant()
    def knows_its_holders(self) -> None:
        assert len(self.tree) == len(self.held)
        for holder, (key, tokens) in self.held.items():
            others = [t for h, (k, t) in self.held.items() if h != holder and k == key]
            shared = max((naive(tokens, t) for t in others), default=0)
            assert self.tree.unique(holder) == len(tokens) - shared

    def teardown(self) -> None:
        for holder in list(self.held):
            self.tree.remove(holder)
        assert not self.tree._roots


TestTree = TreeMachine.TestCase
