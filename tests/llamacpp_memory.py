"""Prints what llama.cpp allocates for a model and a room, by its own account: a program for tests, one per figure.

Arguments: model, capacity, sequences, tokens of a step, KV type, and "read" or "map" for the weights; those that are
mapped count as the whole file, also what was copied out of it.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from edgellm_llamacpp.native import library, open_context, open_model

from edgellm.contracts.engine import Placement
from edgellm.errors import LoadFailed
from edgellm.formats.gguf import read_model


def main() -> int:
    path, kv_type = Path(sys.argv[1]), sys.argv[5]
    capacity, sequences, batch = (int(text) for text in sys.argv[2:5])
    placement = Placement(
        context=capacity,
        capacity=capacity,
        max_sequences=sequences,
        batch_tokens=batch,
        threads=1,
        threads_batch=1,
        use_mmap=sys.argv[6] == "map",
        spills=sys.argv[6] == "map",
        kv_type=kv_type,
    )
    lib = library()
    lines: list[str] = []
    callback = lib.api.llama_log_callback(lambda _level, text, _data: lines.append((text or b"").decode()))
    lib.api.llama_log_set(callback, None)
    try:
        model = open_model(lib, read_model(path), placement, lambda _done: None)
        context = open_context(lib, model, placement)
    except LoadFailed as error:
        print(error.message, *lines[-10:])
        return 1
    found = dict.fromkeys(("kv", "scratch", "weights"), 0.0)
    kinds = {"KV": "kv", "RS": "kv", "compute": "scratch", "output": "scratch", "model": "weights"}
    for line in lines:
        told = re.search(r"(KV|RS|compute|output|model) buffer size = +([\d.]+) MiB", line)
        if told:
            found[kinds[told[1]]] += float(told[2])
    context.close()
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
