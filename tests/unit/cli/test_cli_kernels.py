"""doctor --kernels: what computes each operation, and why; whatever is installed."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace

import pytest
from edgellm_torch.plugin import TorchPlugin

from edgellm import errors, plugins
from edgellm.cli.main import main
from edgellm.contracts.engine import Available, Unavailable
from edgellm.contracts.kernels import KernelChoice, KernelReport
from edgellm.errors import pip_install

Streams = pytest.CaptureFixture[str]


class Choosy(TorchPlugin):
    """An engine with a kernel that does not apply."""

    state: Available | Unavailable = Available("1.0")

    def probe(self) -> Available | Unavailable:
        return self.state

    def kernels(self) -> KernelReport:
        choice = KernelChoice("linear", "slow", "runs everywhere", (("fast", "made for another device"),))
        return KernelReport("abacus", (choice,))


def install(monkeypatch: pytest.MonkeyPatch, plugin: object, name: str = "torch") -> None:
    monkeypatch.setattr(plugins, "entry_points", lambda group: [EntryPoint(name, "unused:plugin", plugins.ENGINES)])
    monkeypatch.setattr(plugins, "_load", lambda entry: plugin)


def test_the_torch_engine_names_what_computes_every_op(monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    install(monkeypatch, TorchPlugin())
    assert main(["doctor", "--kernels"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("PyTorch on cpu\n")
    for op in ("linear", "attention", "experts", "dequantise", "kv_write"):
        assert f"{op} " in out
    assert "reference: torch" in out
    assert main(["doctor", "--kernels", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)["kernels"]["torch"]
    assert report["device"] == "cpu"
    assert {choice["op"] for choice in report["choices"]} >= {"linear", "attention"}


def test_kernels_that_do_not_apply_say_why(monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    install(monkeypatch, Choosy())
    assert main(["doctor", "--kernels"]) == 0
    out = capsys.readouterr().out
    assert "PyTorch on abacus" in out
    assert "slow: runs everywhere; not fast: made for another device" in out


def test_without_torch_it_says_what_mends_it(monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    plugin = Choosy()
    plugin.state = Unavailable("torch is not installed", "pip install it")
    install(monkeypatch, plugin)
    assert main(["doctor", "--kernels"]) == 0
    out = capsys.readouterr().out
    assert "PyTorch: not available: torch is not installed\n  mend: pip install it" in out
    assert main(["doctor", "--kernels", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["kernels"]["torch"]["reason"] == "torch is not installed"


def test_an_engine_without_choices_brings_its_own(monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    install(monkeypatch, SimpleNamespace(name="parrot", title="Parrot"), "parrot")
    assert main(["doctor", "--kernels"]) == 0
    assert capsys.readouterr().out == "Parrot: brings its own, and does not choose among them\n"
    assert main(["doctor", "--kernels", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"kernels": {}}
    monkeypatch.setattr(plugins, "entry_points", lambda group: [])
    assert main(["doctor", "--kernels"]) == 0
    assert capsys.readouterr().out == "No engine is installed, so nothing is computed.\n"


@pytest.mark.parametrize(
    ("flags", "built", "amx", "linear", "attention"),
    [
        ({"avx2"}, True, False, "edgellm: rows side by side", "edgellm: a lane for each cell"),
        ({"avx2"}, True, True, "not edgellm: it has AMX for that", "edgellm: a lane for each cell"),
        ({"avx2"}, False, False, "not edgellm: it is not in this build", "not edgellm: it is not in this build"),
        ({"asimddp"}, False, False, "not edgellm: this CPU has no AVX2", "not edgellm: this CPU has no AVX2"),
    ],
)
def test_llama_cpp_says_whose_kernels_its_build_has(
    flags: set[str],
    built: bool,
    amx: bool,
    linear: str,
    attention: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Streams,
) -> None:
    from edgellm_llamacpp import repacking
    from edgellm_llamacpp.plugin import plugin

    install(monkeypatch, plugin, "llamacpp")
    monkeypatch.setattr(repacking, "cpu_flags", lambda: frozenset(flags))
    monkeypatch.setattr(repacking, "own_kernels", lambda: built)
    monkeypatch.setattr(repacking, "own_attention", lambda: built)
    monkeypatch.setattr("edgellm_llamacpp.amx.has_amx", lambda api: amx)
    monkeypatch.setattr("edgellm_llamacpp.amx.sound", lambda api: True)
    assert main(["doctor", "--kernels"]) == 0
    title, first, second = capsys.readouterr().out.splitlines()
    assert title == "llama.cpp on cpu"
    assert linear in first
    assert attention in second


def test_an_engine_that_fails_is_no_traceback(monkeypatch: pytest.MonkeyPatch, capsys: Streams) -> None:
    class Broken(Choosy):
        def kernels(self) -> KernelReport:
            raise RuntimeError("no idea")

    install(monkeypatch, Broken())
    assert main(["doctor", "--kernels"]) == 0
    assert "it failed when asked: RuntimeError: no idea" in capsys.readouterr().out


def test_what_is_missing_is_installed_where_edgellm_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The pip on the path is another environment's where ours is not active."""
    pip = tmp_path / "pip"
    pip.write_text("")
    pip.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert pip_install("edgellm[torch]") == f"{shlex.quote(sys.executable)} -m pip install 'edgellm[torch]'"
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert pip_install("edgellm[torch]") == "pip install 'edgellm[torch]'"
    monkeypatch.setattr(errors, "os", SimpleNamespace(name="nt", path=os.path))  # whose shells know no single quotes
    monkeypatch.setattr(sys, "executable", r"C:\Program Files\python.exe")
    assert pip_install("edgellm[torch]") == r'"C:\Program Files\python.exe" -m pip install edgellm[torch]'


def test_a_machine_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process where torch cannot be imported, as where the extra is not installed."""
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from edgellm import plugins; from importlib.metadata import EntryPoint\n"
        "entry = EntryPoint('torch', 'edgellm_torch.plugin:plugin', plugins.ENGINES)\n"
        "plugins.entry_points = lambda group: [entry]\n"
        "from edgellm.cli.main import main; sys.exit(main(['doctor', '--kernels']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "PyTorch: not available: torch is not installed" in done.stdout
    assert "pip install 'edgellm[torch]'" in done.stdout
