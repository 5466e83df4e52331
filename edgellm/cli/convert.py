"""`edgellm convert`: a model's folder into a GGUF file, with a bar."""

from __future__ import annotations

from pathlib import Path

from edgellm.cli.output import Bar, Output
from edgellm.library.convert.convert import Conversion, parse_type, plan_conversion
from edgellm.library.convert.write import write_file
from edgellm.library.staging import PullProgress
from edgellm.paths import expanded
from edgellm.units import size


def convert_folder(folder: str, target: str | None, out_type: str | None, *, json: bool, quiet: bool) -> None:
    """Convert `folder` into `target`; without one, into FOLDER.TYPE.gguf here."""
    output = Output(json=json, quiet=quiet)
    wanted = parse_type(out_type) if out_type else None
    output.status("reading it …")
    try:
        conversion = plan_conversion(expanded(folder), wanted)
        output.note(described(conversion))
        for note in conversion.notes:
            output.warn(note)
        path = expanded(target) if target else Path(f"{conversion.folder.name}.{conversion.type.lower()}.gguf")
        bar = Bar(output)

        def report(progress: PullProgress) -> None:
            bar.update(progress.done, progress.total)

        written = write_file(conversion, path, report)
    finally:
        output.clear_status()
    bar.finish(written.size, "converted")
    if json:
        facts = {"architecture": conversion.architecture.name, "type": conversion.type, "notes": conversion.notes}
        output.document({"path": str(path), "size": written.size, "digest": written.digest, **facts})
    elif quiet:
        output.line(str(path))
    else:
        output.line(f"written: {path}. Into the store: `edgellm pull {_pullable(path)}`")


def described(conversion: Conversion) -> str:
    """A line on what will be written."""
    facts = [conversion.architecture.name, conversion.type, size(conversion.size)]
    return f"{conversion.folder.name}  {' · '.join(facts)}"


def _pullable(path: Path) -> str:
    """As `pull` takes it for a path."""
    return str(path) if path.is_absolute() or path.parent != Path() else f"./{path}"
