"""How it looks, held against pictures. `python -m pytest tests/unit/tui/test_tui_look.py --snapshot-update` draws new
ones: look at them before they are kept (`__snapshots__/test_tui_look/*.svg`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from chat_app import history, until
from edgellm_tui import bridge, messages
from edgellm_tui.app import ChatApp
from edgellm_tui.bridge import Model
from edgellm_tui.history import History
from edgellm_tui.records import Figures
from edgellm_tui.screens.help import HelpScreen
from textual.pilot import Pilot

from edgellm.config import Settings
from edgellm.contracts.events import Timings, Usage
from edgellm.errors import ErrorInfo
from edgellm.library.pull import PullProgress
from edgellm.paths import default_paths

MODEL = Model(
    name="qwen3:4b",
    title="Qwen3 4B",
    size=2_690_000_000,
    quantization="Q4_K_M",
    context=40_960,
    licence="Apache-2.0",
    parameters=4_020_000_000,
)
SMALL = Model(
    name="smollm2:135m",
    title="SmolLM2 135M Instruct",
    size=98_362_432,
    quantization="Q4_1",
    context=8192,
    licence="Apache-2.0",
    here=False,
)
FIGURES = Figures(0.21, Usage(212, 96, 180), Timings(0.0, 0.2, 4.0, 4.2))
ANSWER = """\
The condition compares the *string* `"10"` with a number: text never becomes smaller than **10**.

```python
n = input("How many? ")
while int(n) < 10:
    n = str(int(n) + 1)  # as text again
```

1. `input` returns text
2. `int` makes a number of it
   - and fails where it cannot

| value | compares as |
|-------|-------------|
| `"9"` | text        |
| `9`   | a number    |
"""
Snap = Callable[..., bool]
Before = Callable[[Pilot[None]], Awaitable[None]]


@pytest.fixture
def kept(home: Path) -> Iterator[History]:
    with history() as opened:
        yield opened


def app_of(kept: History, theme: str, model: Model | None = MODEL, offer: Model | None = None) -> ChatApp:
    kept.prefer("theme", theme)
    return ChatApp(default_paths(), Settings(), kept, model, offer)


def converse(kept: History) -> int:
    """Three conversations; the last one has a thought, code, a list and a table."""
    kept.ask(None, "Ideas for a garden on a balcony that faces north", MODEL.name)
    kept.ask(None, "日本語で自己紹介", MODEL.name)
    held, _ = kept.ask(None, "Why does my loop never end?", MODEL.name)
    answer = kept.begin_answer(held.id, MODEL.name)
    kept.extend_answer(answer.id, ANSWER, "The loop compares text with a number.")
    kept.end_answer(answer.id, "done", figures=FIGURES, thought_s=4.0)
    return held.id


async def ready(app: Any) -> None:
    await until(lambda: app.screen_stack and app.chat.focused is not None and app.chat.query("Empty, Offer"))


def opened(conversation: int, *keys: str) -> Before:
    async def before(pilot: Pilot[None]) -> None:
        app: Any = pilot.app
        await ready(app)
        app.chat.post_message(messages.ConversationChosen(conversation))
        await until(lambda: app.chat.conversation.display and app.chat.conversation.replies)
        await pilot.pause()
        await pilot.press(*keys)
        await pilot.pause()

    return before


@pytest.mark.parametrize("theme", ["edgellm-dark", "edgellm-light", "ansi-dark", "ansi-light"])
def test_a_conversation_at_80_by_24(kept: History, snap_compare: Snap, theme: str) -> None:
    app = app_of(kept, theme)
    assert snap_compare(app, terminal_size=(80, 24), run_before=opened(converse(kept), "pageup"))


@pytest.mark.parametrize("theme", ["edgellm-dark", "edgellm-light"])
def test_a_conversation_at_120_by_40(kept: History, snap_compare: Snap, theme: str) -> None:
    app = app_of(kept, theme)
    assert snap_compare(app, terminal_size=(120, 40), run_before=opened(converse(kept), "ctrl+t", "o", "n", "e"))


@pytest.mark.parametrize("theme", ["edgellm-dark", "edgellm-light"])
def test_a_failed_answer(kept: History, snap_compare: Snap, theme: str) -> None:
    held, _ = kept.ask(None, "Tell me about whales", MODEL.name)
    answer = kept.begin_answer(held.id, MODEL.name)
    kept.extend_answer(answer.id, "Whales are")
    error = ErrorInfo("daemon_gone", "the connection to the daemon broke off", "try again: that starts a daemon")
    kept.end_answer(answer.id, "failed", error=f"{error.message}\n{error.hint}")
    app = app_of(kept, theme)
    assert snap_compare(app, terminal_size=(80, 24), run_before=opened(held.id))


@pytest.mark.parametrize("size", [(80, 24), (120, 40)], ids=["80", "120"])
def test_the_empty_screen_teaches_the_keys(kept: History, snap_compare: Snap, size: tuple[int, int]) -> None:
    async def before(pilot: Pilot[None]) -> None:
        await ready(pilot.app)
        await pilot.pause()

    assert snap_compare(app_of(kept, "edgellm-dark"), terminal_size=size, run_before=before)


def test_a_first_start(kept: History, snap_compare: Snap) -> None:
    async def before(pilot: Pilot[None]) -> None:
        await ready(pilot.app)
        pilot.app.post_message(messages.PullMoved(SMALL.name, PullProgress("download", 47 << 20, SMALL.size)))
        await pilot.pause()

    app = app_of(kept, "edgellm-dark", None, SMALL)
    assert snap_compare(app, terminal_size=(80, 24), run_before=before)


def test_the_list_of_models(kept: History, snap_compare: Snap, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bridge, "listed", lambda *_: [MODEL, SMALL])

    async def before(pilot: Pilot[None]) -> None:
        await ready(pilot.app)
        await pilot.press("ctrl+o")
        await until(lambda: pilot.app.screen.query("OptionList").first().option_count == 3)  # type: ignore[attr-defined]
        await pilot.pause()

    assert snap_compare(app_of(kept, "edgellm-light"), terminal_size=(80, 24), run_before=before)


def test_the_page_of_keys(kept: History, snap_compare: Snap) -> None:
    async def before(pilot: Pilot[None]) -> None:
        await ready(pilot.app)
        await pilot.press("f1")
        await until(lambda: isinstance(pilot.app.screen, HelpScreen))
        await pilot.pause()

    assert snap_compare(app_of(kept, "edgellm-dark"), terminal_size=(80, 24), run_before=before)
