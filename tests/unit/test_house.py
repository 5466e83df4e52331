"""The rules of the house: who may import whom, no circles, no file too long."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
LONGEST = 400
TREES = {
    "edgellm": ROOT / "edgellm",
    "edgellm_llamacpp": ROOT / "backends" / "edgellm_llamacpp",
    "edgellm_torch": ROOT / "backends" / "edgellm_torch",
    "edgellm_cloud": ROOT / "backends" / "edgellm_cloud",
    "edgellm_kernels": ROOT / "kernels" / "edgellm_kernels",
    "edgellm_tui": ROOT / "tui" / "edgellm_tui",
}

# A room and the rooms it may import. A room is a folder of edgellm/, or a file directly in it.
GROUND = {"__init__", "errors", "inert", "paths", "platform", "slash", "small_files", "units"}
DATA = GROUND | {"contracts", "formats"}
SETTINGS = {"setting", "spelling", "config"}
PLANNING = DATA | SETTINGS | {"presets", "plugins", "placement"}
LIBRARY = PLANNING | {"library"}
MODELS = LIBRARY | {"router", "engine"}
MAY_IMPORT: dict[str, set[str]] = {
    "__init__": set(),
    "__main__": {"cli"},
    "errors": set(),
    "units": set(),
    "inert": set(),
    "slash": {"errors"},
    "mentions": {"errors", "inert", "paths", "small_files", "units"},
    "small_files": set(),
    "paths": GROUND,
    "platform": GROUND,
    "contracts": {"errors"},
    "formats": DATA,
    "presets": {"contracts", "errors"},
    "wishes": {"contracts", "errors", "presets"},
    "setting": {"errors", "units"},
    "spelling": {"setting"},
    "config": DATA | SETTINGS | {"presets"},
    "plugins": DATA,
    "placement": DATA | {"config"},
    "library": PLANNING,
    "router": LIBRARY,
    "engine": LIBRARY,
    "launch": LIBRARY,
    "client": LIBRARY | {"launch"},
    "service": MODELS,
    "server": MODELS | {"client", "launch", "service"},
    "cli": MODELS | {"client", "service", "server", "mentions", "wishes"},
}
BACKENDS_MAY_IMPORT = {"contracts", "formats", "errors"}
APPS_MAY_IMPORT = GROUND | {"client", "config", "contracts", "library", "mentions", "wishes"}
PYDANTIC_ROOM = "server"


def modules() -> Iterator[tuple[str, Path]]:
    for package, root in TREES.items():
        for path in sorted(root.rglob("*.py")):
            parts = [package, *path.relative_to(root).with_suffix("").parts]
            yield ".".join(parts), path


def imports(path: Path) -> Iterator[str]:
    """Every module imported anywhere in a file, but for type checking only."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    skipped: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped.update(id(child) for child in ast.walk(node))
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room(module: str) -> str:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def known_modules() -> set[str]:
    return {name.removesuffix(".__init__") for name, _ in modules()}


def test_every_room_imports_only_what_lies_below() -> None:
    broken = []
    names = known_modules()
    for module, path in modules():
        if not module.startswith("edgellm."):
            continue
        here = room(module)
        assert here in MAY_IMPORT, f"{path}: give the room {here} its place in this test"
        for target in imports(path):
            if target.split(".")[0] in TREES and target.split(".")[0] != "edgellm":
                broken.append(f"{module} imports {target}: backends and apps are found by entry point")
            if target in names and target.startswith("edgellm.") and room(target) not in MAY_IMPORT[here] | {here}:
                broken.append(f"{module} imports {target}")
            if target.split(".")[0] == "pydantic" and here != PYDANTIC_ROOM:
                broken.append(f"{module} imports pydantic")
    assert not broken, "\n".join(broken)


def test_backends_know_only_the_contracts() -> None:
    names = known_modules()
    broken = [
        f"{module} imports {target}"
        for module, path in modules()
        if module.startswith(("edgellm_llamacpp", "edgellm_torch", "edgellm_cloud"))
        for target in imports(path)
        if target in names and target.startswith("edgellm.") and room(target) not in BACKENDS_MAY_IMPORT
    ]
    assert not broken, "\n".join(broken)


def test_kernels_know_torch_alone() -> None:
    allowed = {"torch", "triton", "edgellm_kernels"} | sys.stdlib_module_names
    broken = [
        f"{module} imports {target}"
        for module, path in modules()
        if module.startswith("edgellm_kernels")
        for target in imports(path)
        if target.split(".")[0] not in allowed
    ]
    assert not broken, "\n".join(broken)


def test_apps_ask_the_daemon_and_the_library() -> None:
    names = known_modules()
    broken = [
        f"{module} imports {target}"
        for module, path in modules()
        if module.startswith("edgellm_tui")
        for target in imports(path)
        if target in names and target.startswith("edgellm.") and room(target) not in APPS_MAY_IMPORT
    ]
    assert not broken, "\n".join(broken)


def test_no_circles() -> None:
    names = known_modules()
    graph = {
        name.removesuffix(".__init__"): {t for t in imports(path) if t in names and t != name}
        for name, path in modules()
    }
    done: set[str] = set()
    trail: list[str] = []

    def visit(name: str) -> None:
        assert name not in trail, "circle: " + " -> ".join([*trail[trail.index(name) :], name])
        if name in done:
            return
        trail.append(name)
        for target in sorted(graph.get(name, ())):
            visit(target)
        trail.pop()
        done.add(name)

    for name in sorted(graph):
        visit(name)


def test_no_file_outgrows_its_room() -> None:
    long = [f"{path}: {n}" for _, path in modules() if (n := len(path.read_text("utf-8").splitlines())) > LONGEST]
    assert not long, "\n".join(long)


def test_folders_of_packages_are_not_packages() -> None:
    assert not [name for name in ("backends", "kernels", "tui") if (ROOT / name / "__init__.py").exists()]
