"""The chat app under a flood: how long the screen stands still, and how fast a long history opens.

    python -m benchmarks.chat [--tokens-per-second 2000] [--seconds 5]

A scripted daemon in a process of its own sends text of each kind at that rate; the app draws it, on 120 x 40 cells,
without a terminal. A frame is what the event loop does without letting keys through; its time is the loop's own CPU
time, so that other programs on the machine count little. Prints one JSON object a line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from chat_app import chatting, daemon, history, screen, until
from edgellm_tui.calm import settle
from fake_service import Step, finish

from edgellm.contracts.events import Started, TextDelta

TOKEN = 4  # characters
TEXTS = {
    "prose": "The **quick** brown fox `jumps` over the lazy dog, and some more words follow.\n\n",
    "code": "def function(x: int) -> str:\n    return f'{x} things'  # a comment\n",
    "list": "- an item with **bold** text and `code` in it\n",
    "tables": "| a | b | c |\n|---|---|---|\n" + "| some words | 12345 | and more words |\n" * 20 + "\n",
}
FIRST = {"code": "```python\n"}


def script(kind: str, rate: int, seconds: float) -> list[Step]:
    """Tokens in batches of a hundredth of a second, as a fast engine sends them."""
    text = FIRST.get(kind, "") + TEXTS[kind] * int(rate * TOKEN * seconds / len(TEXTS[kind]))
    batch = max(1, rate // 100)
    steps: list[Step] = [Started(7, 0, 1)]
    for at in range(0, len(text), TOKEN * batch):
        piece = text[at : at + TOKEN * batch]
        steps += [TextDelta(piece[start : start + TOKEN]) for start in range(0, len(piece), TOKEN)]
        steps.append(0.01)
    return [*steps, *finish("\n\nthe end")]


async def frames(ended: asyncio.Event) -> list[float]:
    """Seconds of CPU between two turns of the event loop."""
    found, last = [], time.thread_time()
    while not ended.is_set():
        await asyncio.sleep(0)
        now = time.thread_time()
        found.append(now - last)
        last = now
    return found


async def stream(kind: str) -> dict[str, object]:
    async with chatting((120, 40)) as (app, pilot):
        ended = asyncio.Event()
        app.chat.prompt.area.insert("go")
        await pilot.press("enter")
        await until(lambda: app.chat.conversation.replies, 60)
        began = time.monotonic()
        measuring = asyncio.create_task(frames(ended))
        await until(lambda: not app.chat.answering, 300)
        took = time.monotonic() - began
        await until(lambda: "the end" in screen(app), 60)
        ended.set()
        times = sorted(await measuring, reverse=True)
        reply = app.chat.conversation.last
        assert reply is not None
        return {
            "text": kind,
            "tokens_per_s": round(len(reply.text) / TOKEN / took),
            "longest_frame_ms": round(1000 * times[0], 1),
            "frames_over_50_ms": sum(each > 0.05 for each in times),
            "p99.9_ms": round(1000 * times[len(times) // 1000], 1),
        }


async def opening() -> dict[str, object]:
    """Ten thousand turns."""
    with history() as kept:
        held, _ = kept.ask(None, "the first of all", "fake:latest")
        kept._db.executemany(
            "INSERT INTO turn (conversation, role, text, created) VALUES (?, ?, ?, 0)",
            [(held.id, ("assistant", "user")[n % 2], f"**turn** {n}\n\n- a\n- b\n") for n in range(9_999)],
        )
        kept._db.commit()
    async with chatting((120, 40)) as (app, pilot):
        await pilot.pause()
        from edgellm_tui.messages import ConversationChosen

        began, cpu = time.monotonic(), time.thread_time()
        app.chat.post_message(ConversationChosen(held.id))
        await until(lambda: "turn 9998" in screen(app), 60)
        wall, spent = time.monotonic() - began, time.thread_time() - cpu
        return {"history": 10_000, "open_s": round(wall, 3), "open_cpu_s": round(spent, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens-per-second", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--serve", choices=sorted(TEXTS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        with daemon(script(given.serve, given.tokens_per_second, given.seconds)):
            sys.stdout.write("ready\n")
            sys.stdout.flush()
            sys.stdin.read()
        return
    with tempfile.TemporaryDirectory() as home:
        os.environ["EDGELLM_HOME"] = home
        settle()  # as the app does when it starts
        for kind in TEXTS:
            command = [sys.executable, "-m", "benchmarks.chat", "--serve", kind, *sys.argv[1:]]
            with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
                assert server.stdout is not None
                server.stdout.readline()
                print(json.dumps(asyncio.run(stream(kind))), flush=True)
                server.communicate()
        print(json.dumps(asyncio.run(opening())), flush=True)


if __name__ == "__main__":
    main()
