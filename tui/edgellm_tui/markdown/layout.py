"""Blocks below each other, where only the last ones still change.

Textual's own stream layout keeps the places of blocks that did not ask for a new one; but such requests replace each
other in a queue, so it keeps wrong ones, too, and text is covered. Here it is known which blocks may have changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.geometry import NULL_OFFSET, NULL_SPACING, Region, Size
from textual.layout import ArrangeResult, Layout, WidgetPlacement

if TYPE_CHECKING:
    from textual.widget import Widget

CHANGING = 3  # an append changes the last block and adds others


class Joined:
    """A block that follows one of its kind without distance."""


class GrowingLayout(Layout):
    """Full width, height as the content wants, the margin above it, which only the first block does not have.

    `reset` where an earlier block changed.
    """

    name = "growing"

    def __init__(self) -> None:
        super().__init__()
        self._placed: list[WidgetPlacement] = []
        self._width = 0
        self._seen = 0  # blocks there were

    def reset(self) -> None:
        self._placed = []

    def arrange(self, parent: Widget, children: list[Widget], size: Size, greedy: bool = True) -> ArrangeResult:  # noqa: ARG002
        parent.pre_layout(self)
        if size.width != self._width:
            self._placed, self._width = [], size.width
        placed = self._unchanged(children)
        viewport = parent.app.viewport_size
        for widget in children[len(placed) :]:
            across, down = widget.styles.gutter.totals
            above = widget.styles.margin.top
            y = 0
            if placed:
                joined = isinstance(widget, Joined) and isinstance(placed[-1].widget, Joined)
                y = placed[-1].region.bottom + (0 if joined else above)
            height = widget.get_content_height(size, viewport, size.width - across) + down
            region = Region(0, y, size.width, height)
            placed.append(WidgetPlacement(region, NULL_OFFSET, NULL_SPACING, widget, 0, False, False, False))
        self._placed, self._seen = placed, len(children)
        return list(placed)

    def _unchanged(self, children: list[Widget]) -> list[WidgetPlacement]:
        """The places of the blocks at the beginning that are as they were."""
        kept: list[WidgetPlacement] = []
        for placement, widget in zip(self._placed[: max(0, self._seen - CHANGING)], children, strict=False):
            if placement.widget is not widget:
                break
            kept.append(placement)
        return kept

    def get_content_width(self, widget: Widget, container: Size, viewport: Size) -> int:  # noqa: ARG002
        return widget.scrollable_content_region.width

    def get_content_height(self, widget: Widget, container: Size, viewport: Size, width: int) -> int:  # noqa: ARG002
        return widget.arrange(Size(width, 0)).total_region.height if widget._nodes else 0
