"""What a process of the torch engine takes at most: torch_memory.py MODEL CONTEXT CAPACITY SEQUENCES BATCH KV_TYPE

It has what a worker has, its vocabulary too, and runs its largest step: at the end of a context that nobody computed.
Prints the high-water mark of its resident memory in bytes, with as much of libraries' files as is planned; Linux.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from edgellm_torch.costs import LIBRARIES
from edgellm_torch.plugin import TorchPlugin
from edgellm_torch.runner import TorchRunner
from resident import Watch

import edgellm.engine.worker  # noqa: F401
from edgellm.contracts.engine import Placement
from edgellm.contracts.runner import Row, SampleSpec
from edgellm.formats.gguf import read_model

EVERYTHING = SampleSpec(top_p=0.9, seed=1, logprobs=5)


def main() -> None:
    watch = Watch(os.getpid(), LIBRARIES)
    path, *numbers, kv_type = sys.argv[1:]
    context, capacity, sequences, batch = map(int, numbers)
    model, plugin = read_model(Path(path)), TorchPlugin()
    placement = Placement(
        context=context,
        capacity=capacity,
        max_sequences=sequences,
        batch_tokens=batch,
        threads=1,
        threads_batch=1,
        kv_type=kv_type,
    )
    tokenizer = plugin.tokenizer(model)
    runner = plugin.load(model, placement, lambda _done: None)
    assert isinstance(runner, TorchRunner)
    tokenizer.encode("A text.", special=False)
    start = context - (batch - sequences + 1)
    room = runner._pool.open(0, start, [group.first(start) for group in runner._pool.groups])
    assert room, "no room for the longest context"
    rows = [Row(0, start, [5] * (context - start), EVERYTHING)]
    rows += [Row(sequence, 0, [5], EVERYTHING) for sequence in range(1, sequences)]
    runner.collect(runner.submit(rows))
    print(watch.peak())


if __name__ == "__main__":
    main()
