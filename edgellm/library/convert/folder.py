"""A model's folder: what is in it, and what is refused.

Only JSON, safetensors, text and SentencePiece files are read. Pickles (pytorch_model.bin) and a model's own Python
files can run anything when used; they are not touched.
"""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Final

import numpy as np

from edgellm.errors import BadModelFile, NotFound
from edgellm.formats.checkpoint import read_checkpoint
from edgellm.formats.safetensors import SafeTensor
from edgellm.library.convert.config import Config, read_json_if_there
from edgellm.library.convert.weights import DTYPES, Weight

_PACKED: Final = "convert the original, unquantised model; its GGUF can be quantised afterwards"
_GENERIC: Final = frozenset({"model", "models", "checkpoint", "output", "final", "hf", "main"})


class Folder:
    """The checked contents of a model's folder. Opening reads headers only."""

    def __init__(self, path: Path) -> None:
        """Raises NotFound, BadModelFile."""
        if not path.is_dir():
            raise NotFound(f"no folder {path}", hint="name the folder that holds config.json", param="model")
        if not (path / "config.json").is_file():
            raise BadModelFile(
                f"{path}: there is no config.json",
                hint="name the folder of a model as its authors publish it: config.json, *.safetensors, tokenizer.json",
            )
        checkpoint = read_checkpoint(path)
        self.path = path
        self.config = Config(path / "config.json", checkpoint.config)
        self.tokenizer_config = self._config("tokenizer_config.json")
        self.generation = self._config("generation_config.json")
        self.tensors: dict[str, SafeTensor] = {}
        self._files: dict[str, Path] = {}
        self._maps: dict[Path, mmap.mmap] = {}
        for file, tensor in checkpoint.tensors():
            self.tensors[tensor.name], self._files[tensor.name] = tensor, file.path
        _refuse_quantised(self.config)

    @property
    def name(self) -> str:
        """What the model is called: its folder's name where that says anything, else what config.json remembers."""
        full = self.path.resolve()
        if full.parent.name == "snapshots" and full.parent.parent.name.startswith("models--"):  # a hub's cache
            return full.parent.parent.name.rsplit("--", 1)[-1]
        said = self.config.get("_name_or_path")
        if full.name.lower() in _GENERIC and isinstance(said, str) and said.strip("./\\"):
            return said.replace("\\", "/").rstrip("/").rsplit("/", 1)[-1]
        return full.name

    def file(self, name: str) -> Path | None:
        """That file, where there is one."""
        path = self.path / name
        return path if path.is_file() else None

    def where(self, name: str) -> str:
        """File and tensor, for messages."""
        return f"{self._files[name]}: tensor {name}"

    def weight(self, name: str) -> Weight:
        """A view of that tensor; nothing is read yet. Raises BadModelFile for a type that is not converted."""
        tensor = self.tensors[name]
        if tensor.dtype not in DTYPES:
            raise BadModelFile(
                f"{self.where(name)}: its type {tensor.dtype} cannot be converted",
                hint="convert the original model, in BF16, F16 or F32",
            )
        mapped = self._maps.get(self._files[name])
        if mapped is None:
            with self._files[name].open("rb") as file:
                mapped = self._maps[self._files[name]] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        count = tensor.nbytes // np.dtype(DTYPES[tensor.dtype]).itemsize
        values = np.frombuffer(mapped, DTYPES[tensor.dtype], count, tensor.offset)
        return Weight((values.reshape(tensor.shape),), tensor.dtype)

    def main_type(self) -> str:
        """The type that holds most of the weights, as one GGUF has: "F32", "F16" or "BF16"."""
        held: dict[str, int] = {}
        for tensor in self.tensors.values():
            held[tensor.dtype] = held.get(tensor.dtype, 0) + tensor.nbytes
        most = max((dtype for dtype in held if dtype in DTYPES), key=lambda dtype: held[dtype], default="F32")
        return "F32" if most == "F64" else most

    def _config(self, name: str) -> Config:
        return Config(self.path / name, read_json_if_there(self.path / name))


def _refuse_quantised(config: Config) -> None:
    if config.has("quantization_config"):
        method = config.within("quantization_config").get("quant_method") or "in an unnamed way"
        config.bad("quantization_config", f"the weights are already quantised ({method})", _PACKED)
