"""How a text's embedding is made of its tokens': by the files that sentence-transformers writes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

from edgellm.errors import BadModelFile
from edgellm.library.convert.config import Config, read_json
from edgellm.library.convert.folder import Folder
from edgellm.small_files import read_small_text, why

_NUMBERS: Final = {"mean": 1, "cls": 2, "lasttoken": 3}
_OTHER: Final = "look for a GGUF of the model"


def metadata(folder: Folder, embeds: bool, notes: list[str]) -> dict[str, Any]:
    """The key `pooling_type`, for models that make embeddings. Raises BadModelFile for what the engine cannot do."""
    modules = folder.file("modules.json")
    if modules is None:
        if embeds:
            notes.append("the folder does not say how embeddings are made of tokens: the mean is taken")
        return {"pooling_type": _NUMBERS["mean"]} if embeds else {}
    kinds = _modules(modules)
    for kind, _ in kinds:
        if kind not in ("Transformer", "Pooling", "Normalize"):
            raise BadModelFile(f"{modules}: a step {kind} follows the model: not supported by the engine", hint=_OTHER)
    place = next((path for kind, path in kinds if kind == "Pooling"), None)
    if place is None or not re.fullmatch(r"[\w.-]+", place):
        raise BadModelFile(f"{modules}: names no folder for Pooling", hint=_OTHER)
    path = folder.path / place / "config.json"
    return {"pooling_type": _NUMBERS[_mode(Config(path, read_json(path)))]}


def _modules(file: Path) -> list[tuple[str, str]]:
    """Kind and folder of each step."""
    import json

    try:
        steps = json.loads(read_small_text(file))
        return [(str(step["type"]).rsplit(".", 1)[-1], str(step["path"])) for step in steps]
    except OSError as error:
        raise BadModelFile(f"{file}: {why(error)}", hint="fetch it again") from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise BadModelFile(f"{file}: is not a list of steps", hint="fetch it again") from error


def _mode(config: Config) -> str:
    """Exactly one of the known ways."""
    said = config.get("pooling_mode")
    modes = {
        "mean": config.get("pooling_mode_mean_tokens"),
        "cls": config.get("pooling_mode_cls_token"),
        "lasttoken": config.get("pooling_mode_lasttoken"),
    }
    wanted = [name for name, on in modes.items() if on]
    if isinstance(said, str) and said in _NUMBERS:
        return said
    others = [key for key in ("pooling_mode_max_tokens", "pooling_mode_mean_sqrt_len_tokens") if config.get(key)]
    others += [key for key in ("pooling_mode_weightedmean_tokens",) if config.get(key)]
    if len(wanted) != 1 or others:
        shown = ", ".join([*wanted, *others]) or "none"
        raise BadModelFile(f"{config.path}: pooling is {shown}: not supported by the engine", hint=_OTHER)
    return wanted[0]
