"""The real worker, core and scheduler, which tells how it is twenty times a second.

`python core_worker.py SECONDS_PER_STEP` with the engine in memory, or `python core_worker.py torch`.
"""

from __future__ import annotations

import sys
import time

from fake_runner import FakeBehaviour, FakePlugin

from edgellm import plugins
from edgellm.engine import protocol
from edgellm.engine.worker import TextWorker
from edgellm.engine.worker_base import serve


def fake(step_s: float) -> FakePlugin:
    return FakePlugin(FakeBehaviour(on_step=lambda rows: time.sleep(step_s)))


if __name__ == "__main__":
    protocol.HEARTBEAT_S = 0.05  # what it did just before it is killed must be known
    if sys.argv[1] != "torch":
        plugin = fake(float(sys.argv[1]))
        plugins.engine = lambda name: plugin
    serve(TextWorker)
