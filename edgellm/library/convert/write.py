"""A conversion onto the disk: into a file the user names, or staged for the store. Whole or not at all."""

from __future__ import annotations

import contextlib
from pathlib import Path

from edgellm.errors import InvalidRequest
from edgellm.formats.gguf import read_model
from edgellm.library.convert.convert import Conversion
from edgellm.library.staging import Meter, Report, Staged, disk_errors, publish_file, require_space, write_hashed


def stage(conversion: Conversion, target: Path, report: Report) -> Staged:
    """Write the file to `target`, hashing, and read its header back as anyone who loads it will.

    Raises BadModelFile, DiskFull, LibraryError.
    """
    size = conversion.size
    require_space(target.parent, size, f"converting {conversion.folder.name}")
    staged = write_hashed(conversion.chunks(), target, Meter(report, "convert", size))
    read_model(target)
    return staged


def write_file(conversion: Conversion, target: Path, report: Report) -> Staged:
    """Write the file and give it its name at the end. An existing file is not touched.

    Raises InvalidRequest, BadModelFile, DiskFull, LibraryError.
    """
    if target.exists():
        raise InvalidRequest(f"{target} is there already", hint="choose another name, or remove it", param="output")
    if not target.parent.is_dir():
        raise InvalidRequest(f"there is no folder {target.parent}", hint="make it first", param="output")
    unfinished = target.with_name(target.name + ".partial")
    with disk_errors(f"cannot write {target}"):
        try:
            staged = stage(conversion, unfinished, report)
            publish_file(unfinished, target)
        finally:
            with contextlib.suppress(OSError):
                unfinished.unlink()
    return Staged(target, staged.digest, staged.size)
