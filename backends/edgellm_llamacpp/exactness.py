"""Whether a token's logits are the same to the last bit whatever else is in the step: measured per build and type.

Kernels differ in how many rows they take and in which order they add; so with most types a row comes out a little
otherwise in company than alone. With some it does not (Q4_0, Q4_1, Q8_0 as a rule; with our own kernels Q4_K, Q5_K and
Q6_K, too), and only then is text independent of company, of what was cached, and of drafts.
"""

from __future__ import annotations

import json
import re
import threading
from typing import Any

from edgellm.contracts.engine import ModelFile, Placement, TensorInfo
from edgellm.errors import LoadFailed
from edgellm_llamacpp.builds import ask
from edgellm_llamacpp.repacking import OWN_GROUP, repacked

ALWAYS = 2**31
GRACE_S = 3.0  # beyond the load itself; on a machine too busy to answer, this load does without, and the next may not
EXACT_MICRO_BATCH = 63  # llama.cpp's attention of 64 rows and more is done in tiles, which round otherwise

_OTHER_SCORES = frozenset({"gemma2", "baichuan", "bloom", "refact", "jina-bert-v2"})  # whatever their keys say
_REGISTER = 16  # numbers
_PLAIN_KV = frozenset({"f32", "f16", "bf16"})


def unsplit(api: Any) -> bool:
    """Whether this build's attention rounds the same for one row over a long context as for several."""
    answer = ask(api, "exact", "Q8_0")
    return answer is not None and json.loads(answer)["plain"] == ALWAYS


def untiled(api: Any) -> bool:
    """Whether a row comes out the same in steps of any size."""
    answer = ask(api, "exact", "Q8_0")
    return answer is not None and bool(json.loads(answer).get("tiles"))


def ordinary(model: ModelFile) -> bool:
    """Whether all its attention is of the kind that kernels/ggml/ does: the rest goes llama.cpp's way, in tiles.

    Not so: scores that are capped or biased by distance, sinks, and heads that fill no whole registers.
    """
    arch = model.architecture
    keys = {key.removeprefix(f"{arch}."): value for key, value in model.metadata.items()}
    if arch in _OTHER_SCORES or keys.get("attention.max_alibi_bias"):
        return False
    if any("attn_sinks" in tensor.name for tensor in model.tensors):
        return False
    sizes = [value for key, value in keys.items() if re.fullmatch(r"attention\.(key|value)_length.*", key)]
    if not {"attention.key_length", "attention.value_length"} <= keys.keys():
        heads = keys.get("attention.head_count", 1)
        most = max(heads) if isinstance(heads, list) else heads
        sizes.append(keys.get("embedding_length", 0) // max(1, most))
    return all(size % _REGISTER == 0 for some in sizes for size in (some if isinstance(some, list) else [some]))


class Exactness:
    """Asks beside a load, which takes as long; `cells` waits for the answer."""

    def __init__(self, api: Any, model: ModelFile, placement: Placement, repacks: bool) -> None:
        self._name = model.path.name
        self._ways = _ways(model, repacks)
        self._hopeless = _hopeless(model, placement)
        self._exact = placement.exact
        self._answer: dict[str, dict[str, int]] = {}
        self._thread = threading.Thread(target=self._ask, args=(api,), daemon=True)
        self._thread.start()

    def _ask(self, api: Any) -> None:
        if self._hopeless is None:
            for kind in sorted({kind for kind, _ in self._ways}):
                answer = ask(api, "exact", kind)
                self._answer[kind] = json.loads(answer) if answer else {}

    def cells(self) -> int:
        """Tokens of KV in use up to which rows come out the same; 0: they do not.

        Raises LoadFailed where the placement insists on it and this model cannot.
        """
        self._thread.join(None if self._exact else GRACE_S)
        by_way = {(kind, way): self._answer.get(kind, {}).get(way, 0) for kind, way in self._ways}
        cells = 0 if self._hopeless else min(by_way.values(), default=0)
        if not self._exact:
            return cells
        if self._hopeless:
            why, hint = self._hopeless
            raise LoadFailed(f"{self._name} cannot give exact text: {why} by what is computed at once", hint=hint)
        if cells == 0:
            culprits = ", ".join(sorted({kind for (kind, _), held in by_way.items() if not held}))
            raise LoadFailed(
                f"{self._name} cannot give exact text: with {culprits} this engine rounds by what it computes at once",
                hint="pull it as Q4_0, Q4_1 or Q8_0, or set exact = false",
            )
        return ALWAYS  # where attention is split between threads, single rows are given one


def _hopeless(model: ModelFile, placement: Placement) -> tuple[str, str] | None:
    """What rounds by company whatever the tensor types are, and the way out."""
    if placement.gpu_layers > 0 or any(len(tensor.shape) > 2 for tensor in model.tensors):
        # A router is multiplied in F32, a GPU has kernels of its own.
        return "experts, and layers on a GPU, round", "set exact = false"
    if placement.kv_type not in _PLAIN_KV:
        # llama.cpp turns keys and values by a matrix in F32 before it rounds them to few bits.
        way_out = 'set kv_type = "f16", or exact = false'
        return f"keys and values stored as {placement.kv_type} are turned with a matrix that rounds", way_out
    return None


def _ways(model: ModelFile, repacks: bool) -> set[tuple[str, str]]:
    """The tensor types that are multiplied by, each as it lies in memory."""
    output = any(tensor.name == "output.weight" for tensor in model.tensors)
    return {
        (tensor.type, _way(tensor, repacks))
        for tensor in model.tensors
        if len(tensor.shape) == 2 and not (output and tensor.name == "token_embd.weight")
    }


def _way(tensor: TensorInfo, repacks: bool) -> str:
    """ "plain", "repacked", or what nobody measures: kernels go by groups of rows, and the canary's come out even."""
    if not repacks or not repacked(tensor.type, tensor.shape):
        return "plain"
    return "odd" if tensor.shape[-1] % OWN_GROUP else "repacked"
