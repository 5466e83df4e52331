"""Pulls in the background: the list of models stays usable, and so does the conversation."""

from __future__ import annotations

import threading
from collections.abc import Callable

from textual.message import Message

from edgellm.errors import EdgeError, Interrupted
from edgellm.library.pull import PullProgress, pull
from edgellm.paths import Paths
from edgellm_tui.messages import PullEnded, PullMoved
from edgellm_tui.trouble import record

_LEAVE_S = 1.0  # what quitting grants a pull to end tidily; the next one uses what it left


class Pulls:
    """One thread for each. `post` takes messages from any thread."""

    def __init__(self, paths: Paths, post: Callable[[Message], object]) -> None:
        self._paths = paths
        self._post = post
        self._running: dict[str, threading.Thread] = {}
        self._given_up: set[str] = set()

    def start(self, name: str) -> None:
        """Begin to pull, unless that is so already."""
        if name in self._running:
            return
        self._given_up.discard(name)
        thread = threading.Thread(target=self._pull, args=(name,), daemon=True)
        self._running[name] = thread
        thread.start()

    def running(self, name: str) -> bool:
        return name in self._running

    def give_up(self, name: str) -> None:
        """End a pull at its next step."""
        self._given_up.add(name)

    def close(self) -> None:
        """Give all up."""
        threads = list(self._running.values())
        self._given_up.update(self._running)
        for thread in threads:
            thread.join(_LEAVE_S)

    def _pull(self, name: str) -> None:
        def report(progress: PullProgress) -> None:
            if name in self._given_up:
                raise Interrupted(f"the pull of {name} was stopped")
            self._post(PullMoved(name, progress))

        error = ""
        try:
            pull(name, paths=self._paths, report=report)
        except EdgeError as failure:
            error = failure.message + (f". {failure.hint}" if failure.hint else "")
        except Exception as failure:  # on a thread nobody else hears of it
            record(self._paths, failure)
            error = f"internal error: {type(failure).__name__}: {failure}"
        finally:
            self._running.pop(name, None)
        self._post(PullEnded(name, error))
