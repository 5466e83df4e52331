"""The real daemon process around a scripted service: `python fake_daemon.py SECONDS [arguments of the daemon]`.

Every answer is "Hel", SECONDS of thought, "lo"; a file `enough` in the home ends the thought. An answer that is cut
off by the end fails as a real one does.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncGenerator

from fake_service import FakeService, finish

from edgellm.config import Settings
from edgellm.contracts.events import Event, Failed, Started, TextDelta
from edgellm.contracts.request import GenerateRequest
from edgellm.errors import Unavailable
from edgellm.paths import Paths
from edgellm.server import daemon


class SlowService(FakeService):
    def __init__(self, settings: Settings, paths: Paths) -> None:
        super().__init__()
        self.enough = paths.data / "enough"

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        yield Started(7, 0, 1)
        yield TextDelta("Hel")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(float(sys.argv[1])):
                while not (self.over.is_set() or self.enough.exists()):
                    await asyncio.sleep(0.01)
        if self.over.is_set():
            yield Failed(Unavailable("unloaded before the answer was complete").info)
        else:
            for event in finish("lo"):
                yield event


if __name__ == "__main__":
    daemon.Service = SlowService  # type: ignore[attr-defined]
    sys.exit(daemon.main(sys.argv[2:]))
