"""The real worker, core and scheduler with the engine in memory: `python core_worker.py SECONDS_PER_STEP`."""

from __future__ import annotations

import sys
import time

from fake_runner import FakeBehaviour, FakePlugin

from edgellm import plugins
from edgellm.engine.worker import TextWorker
from edgellm.engine.worker_base import serve

if __name__ == "__main__":
    step_s = float(sys.argv[1])
    plugin = FakePlugin(FakeBehaviour(on_step=lambda rows: time.sleep(step_s)))
    plugins.engine = lambda name: plugin
    serve(TextWorker)
