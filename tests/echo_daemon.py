"""The real daemon process around a service that repeats the last message: `python echo_daemon.py FILE [arguments]`.

"slow" gets its first half and then nothing, "prefill" not even that, until the client leaves; then a line is added to
FILE. Pieces of an answer come 5 ms apart.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

from fake_service import FakeService, finish

from edgellm.config import Settings
from edgellm.contracts.events import Event, Progress, Started, TextDelta
from edgellm.contracts.request import GenerateRequest, Messages
from edgellm.paths import Paths
from edgellm.server import daemon


class EchoService(FakeService):
    def __init__(self, settings: Settings, paths: Paths) -> None:
        super().__init__()

    async def generate(self, request: GenerateRequest) -> AsyncGenerator[Event, None]:
        assert isinstance(request.prompt, Messages)
        text = request.prompt.messages[-1].content
        try:
            if text == "prefill":
                yield Progress("prefill", 0.4)
                await self.over.wait()
            yield Started(7, 0, 1)
            if text == "slow":
                yield TextDelta("the first half")
                await self.over.wait()
            for at in range(0, len(text), 7):
                yield TextDelta(text[at : at + 7])
                await asyncio.sleep(0.005)
            for event in finish(""):
                yield event
        except BaseException:
            with Path(sys.argv[1]).open("a") as file:
                file.write(text + "\n")
            raise


if __name__ == "__main__":
    daemon.Service = EchoService  # type: ignore[attr-defined]
    sys.exit(daemon.main(sys.argv[2:]))
