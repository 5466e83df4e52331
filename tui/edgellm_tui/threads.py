"""Blocking work beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(work: Callable[[], T]) -> T:
    """What `work` returns or raises. Neither the screen nor the end of the program waits for it.

    For what may take long and may be abandoned; `asyncio.to_thread` is for what must complete.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(action: Callable[[], None]) -> None:
        if not future.done():
            action()

    def run() -> None:
        action: Callable[[], None]
        try:
            result = work()
        except BaseException as error:
            failed = error
            action = lambda: future.set_exception(failed)  # noqa: E731
        else:
            action = lambda: future.set_result(result)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the app has ended meanwhile
            loop.call_soon_threadsafe(settle, action)

    threading.Thread(target=run, daemon=True).start()
    return await future
