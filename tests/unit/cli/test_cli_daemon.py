"""ps, stop, serve, config and doctor."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import FakeClient, Streams, at_terminal, loaded, put

import edgellm.cli.output
from edgellm.cli.main import main
from edgellm.cli.suggest import Means, fitting
from edgellm.contracts.engine import Available, Unavailable
from edgellm.errors import EdgeError
from edgellm.library.catalogue_file import Capability, CatalogueEntry, PypiSource, Variant
from edgellm.library.names import parse_name
from edgellm.library.store import Store
from edgellm.paths import default_paths
from edgellm.placement.machine import Memory


def test_ps(daemon: FakeClient, capsys: Streams) -> None:
    daemon.models = [loaded("m:latest", engine="PyTorch")]
    assert main(["ps"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == [
        "m:latest",
        "ready",
        "PyTorch",
        "512",
        "MiB",
        "2,048",
        "25",
        "%",
        "0",
        "0",
        "in",
        "4",
        "min",
    ]
    assert max(map(len, lines)) <= 80
    assert main(["ps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["models"][0]["kv_used"] == 1024


def test_ps_without_a_daemon(daemon: FakeClient, capsys: Streams) -> None:
    daemon.running = False
    assert main(["ps"]) == 0
    assert capsys.readouterr() == ("", "no daemon is running\n")
    assert main(["ps", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"daemon": None, "models": []}


def test_stop(daemon: FakeClient, capsys: Streams) -> None:
    daemon.models = [loaded("m:latest")]
    assert main(["stop", "m:latest"]) == 0
    assert main(["stop", "other"]) == 3
    assert main(["stop", "--all"]) == 0
    assert not daemon.running
    assert main(["stop", "m:latest"]) == 3
    assert main(["stop", "--all"]) == 0


@pytest.mark.parametrize("command", [["ps"], ["stop", "--all"], ["list"], ["show", "m"]])
def test_commands_that_need_no_settings_warn_of_wrong_ones(
    command: list[str], daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("m")
    assert main(command) == 0
    assert "warning" not in capsys.readouterr().err
    monkeypatch.setenv("EDGELLM_PROT", "8080")
    assert main(command) == 0
    assert "warning: unknown setting EDGELLM_PROT in the environment; did you mean" in capsys.readouterr().err


def test_serve_flags_become_settings(home: Path, monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    seen: list[Any] = []

    def run_daemon(settings: Any, paths: object, *, detached: bool, on_ready: Callable[[str], None]) -> None:
        seen.append(settings)
        assert not detached
        on_ready("http://127.0.0.1:9")

    monkeypatch.setattr("edgellm.server.daemon.run_daemon", run_daemon)
    monkeypatch.setattr("edgellm.server.daemon.set_up_logging", lambda settings: None)
    flags = "--port 9 --api-key a --api-key b --parallel 3 --keep-alive forever --context 512 --log-level debug"
    assert main(["serve", *flags.split()]) == 0
    settings = seen[0]
    assert (settings.port, settings.api_keys, settings.max_sequences) == (9, ("a", "b"), 3)
    assert (settings.keep_alive_s, settings.context, settings.log_level) == (-1.0, 512, "debug")
    assert settings.host == "127.0.0.1"
    said = capsys.readouterr().err
    assert "http://127.0.0.1:9/v1" in said
    assert "ended" not in said
    with monkeypatch.context() as terminal:
        at_terminal(terminal, edgellm.cli.output)
        assert main(["serve"]) == 0
        assert capsys.readouterr().err.endswith("\nended\n")
    assert main(["serve", "--port", "70000"]) == 2
    assert main(["serve", "--engine", "steam"]) == 6
    assert "installed engines: llamacpp, torch" in capsys.readouterr().err
    assert main(["serve", "--draft", "nobody"]) == 3
    assert "no model named nobody" in capsys.readouterr().err
    assert len(seen) == 2


def test_config(home: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    import tomllib

    monkeypatch.setenv("EDGELLM_API_KEYS", "hunter2")
    monkeypatch.setenv("EDGELLM_PORT", "7")
    assert main(["config"]) == 0
    out = capsys.readouterr().out
    assert "port = 7  # EDGELLM_PORT" in out
    assert 'host = "127.0.0.1"  # default' in out
    assert "hunter2" not in out
    assert tomllib.loads(out)["port"] == 7
    assert max(map(len, out.splitlines()[1:])) <= 90
    assert main(["config", "--json"]) == 0
    out = capsys.readouterr().out
    assert "hunter2" not in out
    assert json.loads(out)["settings"]["port"]["source"] == "EDGELLM_PORT"


def test_one_setting(home: Path, capsys: Streams) -> None:
    assert main(["config", "host"]) == 0
    assert capsys.readouterr().out == "127.0.0.1\n"
    assert main(["config", "prot"]) == 2
    assert "did you mean port?" in capsys.readouterr().err
    assert main(["config", "nothing_like_it"]) == 2
    assert "hint: `edgellm config` lists all" in capsys.readouterr().err
    assert main(["config", "--path"]) == 0
    assert capsys.readouterr().out == f"{default_paths().config_file}\n"
    default_paths().config_file.write_text("port = 4711\n")  # as a shell does, which makes no folder
    assert main(["config", "port"]) == 0
    assert capsys.readouterr().out == "4711\n"


def engines(monkeypatch: pytest.MonkeyPatch, **states: Available | Unavailable) -> None:
    monkeypatch.setattr("edgellm.plugins.engine_names", lambda: sorted(states))
    monkeypatch.setattr("edgellm.plugins.probe", lambda name: states[name])


def test_doctor_of_a_newcomer(daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    engines(
        monkeypatch,
        llamacpp=Available("1.2", "AVX2 = 1 | FMA = 1"),
        torch=Unavailable("no torch", "install it"),
    )
    daemon.running = False
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for part in (
        "usable core",
        "GiB",
        "1.2 · AVX2, FMA",
        "not available: no torch",
        "mend: install it",
        "not running",
    ):
        assert part in out
    assert "next: `edgellm pull smollm2:135m`" in out


def test_doctor_says_what_would_be_better(daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    engines(monkeypatch, llamacpp=Available("1.2", hint="build it anew"))
    assert main(["doctor"]) == 0, "slow is not broken"
    out = capsys.readouterr().out
    assert "llama.cpp could run better here" in out
    assert "mend: build it anew" in out


def test_doctor_with_models_and_daemon(daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    engines(monkeypatch, llamacpp=Available("1.2"))
    put("m")
    daemon.models = [loaded("m:latest")]
    assert main(["doctor", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is True
    assert report["daemon"]["loaded"] == "m:latest"
    assert "edgellm run m:latest" in report["next"]
    assert "starts a conversation, programs are answered at http://127.0.0.1:1/v1" in report["next"]
    assert "edgellm serve" not in report["next"]
    daemon.settings = {"port": "1"}  # in the background: it says what it was started with
    assert main(["doctor", "--json"]) == 0
    assert "until nobody asks for a while; `edgellm serve` stays" in json.loads(capsys.readouterr().out)["next"]
    assert report["figures"]["models"] == ["m:latest"]
    assert report["figures"]["daemon"]["loaded"] == ["m:latest"]
    assert report["figures"]["engines"]["llamacpp"]["version"] == "1.2"
    assert report["figures"]["memory"] > report["figures"]["memory_free"] > 0


def test_doctor_with_models_that_only_continue_text(
    daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines(monkeypatch, llamacpp=Available("1.2"))
    put("base", chat=False)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    assert '`edgellm run base:latest "The sky is"` continues your text' in out
    assert "`edgellm pull smollm2:135m`" in out


def test_doctor_of_a_small_machine(daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    engines(monkeypatch, llamacpp=Available("1.2"))
    monkeypatch.setattr("edgellm.placement.machine.memory", lambda: Memory(4 << 30, 700 << 20))
    assert main(["doctor"]) == 0
    assert "note: only 700 MiB of memory is free" in capsys.readouterr().out


def test_a_model_that_fits_is_suggested(home: Path) -> None:
    """It fits the memory and the disk, and is no larger than what the cores read eight times a second."""
    entries = [entry(1), entry(2), entry(4), entry(40), entry(3, "embeddings")]

    def suggested(memory: int, disk: int = 100, cores: int = 8) -> str | None:
        found = fitting(entries, Means(memory << 30, disk << 30, cores))
        return found.name.tag if found else None

    assert [suggested(free) for free in (2, 3, 5, 16, 500)] == [None, "1", "2", "4", "4"]
    assert suggested(16, disk=2) == "1"
    assert [suggested(16, cores=count) for count in (1, 2, 4)] == ["1", "2", "4"]


def entry(gib: int, capability: Capability = "chat") -> CatalogueEntry:
    source = PypiSource(package="p", version="1", file="m.gguf", sha256="0" * 64, size=gib << 30)
    name = parse_name(f"m:{gib}")
    return CatalogueEntry(
        name=name, title="M", licence="MIT", variants=(Variant(source=source),), capabilities=(capability,)
    )


def test_doctor_knows_a_daemon_of_another_version(
    daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines(monkeypatch, llamacpp=Available("1.2"))
    daemon.version = "9.9"
    assert main(["doctor"]) == 7
    out = capsys.readouterr().out
    assert "edgellm 9.9" in out
    assert "edgellm stop --all" in out


def test_doctor_finds_what_is_broken(daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    engines(monkeypatch, llamacpp=Unavailable("not built", "build it"))
    Store(default_paths()).model_path(put("m")).unlink()
    default_paths().config_file.parent.mkdir(parents=True)
    default_paths().config_file.write_text("prot = 1")
    assert main(["doctor"]) == 7
    out = capsys.readouterr().out
    for part in (
        "broken: llama.cpp is not available: not built",
        "m:latest",
        "unknown setting prot",
        "next: mend what is broken",
    ):
        assert part in out
    assert main(["doctor", "--json"]) == 7
    assert json.loads(capsys.readouterr().out)["ok"] is False


def test_doctor_sees_a_home_that_cannot_be_written_to(
    daemon: FakeClient, home: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    engines(monkeypatch, llamacpp=Available("1.2"))
    home.mkdir()
    (home / "logs").write_text("a file in its place")
    assert main(["doctor"]) == 7
    assert f"broken: {home / 'logs'} cannot be written to" in capsys.readouterr().out


def test_every_error_has_an_exit_code_of_its_own_kind() -> None:
    for kind in EdgeError.__subclasses__():
        assert 1 < kind.exit_code <= 130, kind


def test_the_reference_is_fresh() -> None:
    script = Path(__file__).parents[3] / "tools" / "cli_reference.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
