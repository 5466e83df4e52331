"""A radix tree over token sequences: which sequence holds the longest prefix of a prompt.

Holders are sequences in KV memory or parked copies, named by any integer. Every edge carries a run of tokens; a holder
ends at a node. The tree knows tokens and holders only: whether a prefix may be used is the runner's to say, when to
drop one the cache's. After RadixAttention in "SGLang: Efficient Execution of Structured Language Model Programs"
(arXiv 2312.07104), section 3.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence


def common_prefix(a: Sequence[int], b: Sequence[int], start: int = 0) -> int:
    """Length of the longest common prefix; the first `start` tokens are known to be equal."""
    end = min(len(a), len(b))
    while start < end:  # slices compare in C: halve until the first difference is cornered
        middle = min(end, start + max(1, (end - start + 1) // 2))
        if a[start:middle] == b[start:middle]:
            start = middle
        elif middle - start == 1:
            return start
        else:
            end = middle
    return start


class _Node:
    __slots__ = ("children", "edge", "ends", "parent")

    def __init__(self, edge: list[int], parent: _Node | None) -> None:
        self.edge = edge
        self.parent = parent
        self.children: dict[int, _Node] = {}
        self.ends: set[int] = set()


class PrefixTree:
    """Holders by what they hold. Keys (API key, adapter …) keep trees apart: nothing is shared across keys."""

    def __init__(self) -> None:
        self._roots: dict[Hashable, _Node] = {}
        self._places: dict[int, tuple[Hashable, _Node]] = {}

    def __len__(self) -> int:
        return len(self._places)

    def insert(self, holder: int, tokens: Sequence[int], key: Hashable = None) -> None:
        """Add a holder that is not in the tree."""
        assert holder not in self._places
        root = self._roots.setdefault(key, _Node([], None))
        self._place(holder, key, root, list(tokens))

    def extend(self, holder: int, tokens: Sequence[int]) -> None:
        """A holder now holds `tokens` more."""
        if not tokens:
            return
        key, node = self._places[holder]
        if len(node.ends) == 1 and not node.children and node.parent is not None:
            node.edge.extend(tokens)  # alone at a leaf: the usual case while decoding
            return
        node.ends.discard(holder)
        self._place(holder, key, node, list(tokens))

    def remove(self, holder: int) -> None:
        """Forget a holder; unknown ones are ignored."""
        place = self._places.pop(holder, None)
        if place is not None:
            place[1].ends.discard(holder)
            self._prune(*place)

    def rename(self, holder: int, new: int) -> None:
        """The same tokens are now held by `new`."""
        key, node = self._places.pop(holder)
        node.ends.discard(holder)
        node.ends.add(new)
        self._places[new] = (key, node)

    def match(self, tokens: Sequence[int], key: Hashable = None) -> tuple[int, list[int]]:
        """The longest prefix of `tokens` that is held, and every holder of it (length 0: none)."""
        node = self._roots.get(key)
        length = 0
        if node is None:
            return 0, []
        while length < len(tokens) and (child := node.children.get(tokens[length])) is not None:
            shared = common_prefix(child.edge, tokens[length : length + len(child.edge)])
            length += shared
            node = child
            if shared < len(child.edge):
                break
        return (length, list(self._below(node))) if length else (0, [])

    def unique(self, holder: int) -> int:
        """How many of a holder's last tokens no other one holds; 0 when another holds them all."""
        _, node = self._places[holder]
        if len(node.ends) > 1 or node.children:
            return 0
        count = len(node.edge)
        while node.parent is not None and len(node.parent.children) == 1 and not node.parent.ends:
            node = node.parent
            count += len(node.edge)
        return count

    # -- structure -------------------------------------------------------------------------------

    def _place(self, holder: int, key: Hashable, node: _Node, tokens: list[int]) -> None:
        """Walk down from `node` along `tokens`, splitting or adding one node, and end there."""
        at = 0
        while at < len(tokens):
            child = node.children.get(tokens[at])
            if child is None:
                child = _Node(tokens[at:], node)
                node.children[tokens[at]] = child
                at = len(tokens)
            else:
                shared = common_prefix(child.edge, tokens[at : at + len(child.edge)])
                if shared < len(child.edge):
                    child = self._split(child, shared)
                at += shared
            node = child
        node.ends.add(holder)
        self._places[holder] = (key, node)

    def _split(self, node: _Node, at: int) -> _Node:
        """Cut `node`'s edge; returns the new upper half. The node itself stays the lower one, with its holders."""
        parent = node.parent
        assert parent is not None
        upper = _Node(node.edge[:at], parent)
        parent.children[upper.edge[0]] = upper
        node.edge = node.edge[at:]
        node.parent = upper
        upper.children[node.edge[0]] = node
        return upper

    def _prune(self, key: Hashable, node: _Node) -> None:
        """Drop empty leaves upwards, and join a node that neither ends nor branches with its only child."""
        while node.parent is not None and not node.ends and not node.children:
            parent = node.parent
            del parent.children[node.edge[0]]
            node = parent
        if node.parent is None:
            if not node.ends and not node.children:
                self._roots.pop(key, None)
        elif not node.ends and len(node.children) == 1:
            (child,) = node.children.values()
            child.edge = node.edge + child.edge
            child.parent = node.parent
            node.parent.children[child.edge[0]] = child

    def _below(self, node: _Node) -> Iterator[int]:
        todo = [node]
        while todo:
            node = todo.pop()
            yield from node.ends
            todo.extend(node.children.values())
