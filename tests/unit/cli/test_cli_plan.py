"""`edgellm plan`: the figures of the plan the daemon loads with, for files, models here, and names of the catalogue."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from zoo import Size
from zoo import write as write_zoo

from edgellm.cli.main import main
from edgellm.config import Settings
from edgellm.formats.gguf import read_model
from edgellm.placement import machine
from edgellm.placement.machine import Memory
from edgellm.placement.plan import make_plan
from edgellm.plugins import engine_for

GIB = 1 << 30
LARGE = Size(
    layers=12, width=1024, ffn=2048, heads=16, kv_heads=8, head=64, vocabulary=32_000, context=131_072, weight=2
)


def write(folder: Path, architecture: str, size: Size | None = None) -> Path:
    return write_zoo(folder, architecture, size, tokenizer="llama")


@pytest.fixture(autouse=True)
def here(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = Memory(16 * GIB, 12 * GIB)
    monkeypatch.setattr(machine, "memory", lambda: fixed)
    monkeypatch.setattr("edgellm.cli.plan.memory", lambda: fixed)
    monkeypatch.setattr("edgellm.cli.plan.cores", lambda: 4)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["plan", *arguments, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_it_shows_the_plan_that_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "gemma3", LARGE)
    model = read_model(path)
    settings = Settings(context=16_384, max_sequences=4, kv_type="q8_0")
    plan = make_plan(model, engine_for(model), settings, Memory(16 * GIB, 12 * GIB), 4)
    found = document(capsys, str(path), "--ctx", "16384", "--parallel", "4", "--kv", "q8_0")
    assert found["placement"]["context"] == 16_384
    assert found["placement"]["kv_type"] == "q8_0"
    assert (
        found["total"]
        == plan.total
        == sum(
            (
                found["needs"]["weights"],
                sum(found["needs"]["kv"].values()),
                found["needs"]["activations"],
                found["needs"]["process"],
            )
        )
    )
    assert set(found["needs"]["kv"]) == {"full", "sliding"}
    assert found["engine"] == "llama.cpp"
    assert found["longest_context"]["q8_0"] == plan.longest == 131_072


def test_it_reads_well(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "gemma3", LARGE)
    assert main(["plan", str(path), "--kv", "q8_0"]) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0].startswith("gemma3.gguf · gemma3 · ")
    assert out.splitlines()[0].endswith(" layers · llama.cpp")
    assert out.splitlines()[1].startswith("RAM  █")
    assert "of 10.4 GiB" in out  # 12 less the reserve
    assert "2 x 8,192 tokens, q8_0" in out
    assert "sliding" in out
    assert "window 256" in out
    assert "131,072 tokens, all it was trained for" in out
    assert "q8_0 saves memory; where the engine has no kernels of edgellm's for it" in err
    assert all(len(line) <= 80 for line in out.splitlines())


def test_what_does_not_fit_is_shown_and_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "llama", LARGE)
    monkeypatch.setattr("edgellm.cli.plan.memory", lambda: Memory(4 * GIB, 2 * GIB))
    assert main(["plan", str(path), "--ctx", "131072"]) == 5
    out, err = capsys.readouterr()
    assert "weights" in out
    assert "error: the model needs" in err
    assert "tokens fits" in err
    assert main(["plan", str(path)]) == 0
    assert "with q8_0" in capsys.readouterr().out  # a longer context would fit


def test_larger_than_memory_it_says_how_fast_the_disk_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    size = Size(layers=4, width=2048, ffn=8192, heads=16, kv_heads=4, head=128, vocabulary=8000, weight=0)
    path = write(tmp_path, "qwen3", size)
    monkeypatch.setattr("edgellm.cli.plan.memory", lambda: Memory(GIB, GIB // 2))
    monkeypatch.setattr("edgellm.placement.disk.read_rate", lambda path: 1e9)
    assert main(["plan", str(path), "--ctx", "1024"]) == 5
    assert "could run partly from disk" in capsys.readouterr().out
    monkeypatch.setenv("EDGELLM_SPILL", "1")
    assert main(["plan", str(path), "--ctx", "1024"]) == 0
    assert "runs partly from disk: each token needs" in capsys.readouterr().out
    found = document(capsys, str(path), "--ctx", "1024")
    assert found["placement"]["spills"] is True
    assert found["disk"]["slowest"] < found["disk"]["fastest"]


def test_a_draft_is_counted_in(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    large, small = write(tmp_path, "llama", LARGE), write(tmp_path, "qwen3")
    alone, both = document(capsys, str(large)), document(capsys, str(large), "--draft", str(small))
    assert both["total"] > alone["total"] + both["draft"]["weights"]
    assert main(["plan", str(large), "--draft", str(small)]) == 0
    assert "draft model" in capsys.readouterr().out


def test_the_draft_that_the_daemon_would_load_is_counted_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    large, small = write(tmp_path, "llama", LARGE), write(tmp_path, "qwen3")
    monkeypatch.setenv("EDGELLM_DRAFT", str(small))
    assert document(capsys, str(large))["draft"]["weights"] > 0
    assert document(capsys, str(small))["draft"] is None  # it does not guess for itself
    monkeypatch.setenv("EDGELLM_DRAFTS", "off")
    assert document(capsys, str(large))["draft"] is None


def test_a_name_of_the_catalogue_is_planned_from_its_figures(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "smollm2:135m"]) == 0
    out, err = capsys.readouterr()
    assert "94 MiB of 10.4 GiB, weights alone" in out
    assert "from the catalogue" in err
    found = document(capsys, "smollm2:135m")
    assert (found["from"], found["fits"]) == ("catalogue", True)


def test_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, "llama")
    assert main(["plan", str(path), "--kv", "q9"]) == 2
    assert "no KV type q9" in capsys.readouterr().err
    assert main(["plan", str(path), "--ctx", "9999999"]) == 2
    assert "trained for 4,096" in capsys.readouterr().err
    assert main(["plan", str(tmp_path / "absent.gguf")]) == 3
    assert main(["plan", "no-such-model"]) == 3
