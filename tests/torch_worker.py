"""The real worker with the torch engine, so many steps in flight: `python torch_worker.py DEPTH`.

At the end of its input it leaves in `ahead` beside the model how many rows took a token that was not known yet.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
from edgellm_torch.plugin import TorchPlugin

from edgellm import plugins
from edgellm.contracts.engine import ModelFile, Placement
from edgellm.contracts.runner import PREVIOUS, Row, TokenRunner
from edgellm.engine.worker import TextWorker
from edgellm.engine.worker_base import serve


class Deep(TorchPlugin):
    """Loads a runner as if its device worked by itself."""

    def load(self, model: ModelFile, placement: Placement, progress: Callable[[float], None]) -> TokenRunner:
        runner = super().load(model, placement, progress)
        runner._info = msgspec.structs.replace(runner.info, pipeline_depth=int(sys.argv[1]))  # type: ignore[attr-defined]
        submit, seen = runner.submit, Path(f"{model.path}.ahead-{sys.argv[1]}")

        def counted(rows: Sequence[Row]) -> object:
            with seen.open("a") as file:
                file.write("x" * sum(row.tokens == (PREVIOUS,) for row in rows))
            return submit(rows)

        runner.submit = counted  # type: ignore[method-assign]
        return runner


if __name__ == "__main__":
    plugins.engine = lambda name: Deep()
    serve(TextWorker)
