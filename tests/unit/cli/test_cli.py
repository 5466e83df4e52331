"""The command line as a whole: it starts quickly, and every failure is a message and an exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_fakes import FakeClient, Streams, at_terminal, explode, put

import edgellm.cli.answer
import edgellm.cli.app
import edgellm.cli.daemon
import edgellm.cli.doctor
import edgellm.cli.models
import edgellm.cli.output
import edgellm.cli.pull
import edgellm.cli.run
from edgellm import __version__
from edgellm.cli import habits
from edgellm.cli.main import app, main
from edgellm.config import fields
from edgellm.errors import AppUnavailable, DaemonError, LibraryError
from edgellm.setting import option


def test_help_is_light_and_quick() -> None:
    """Help imports nothing heavy, and takes a quarter of a second at most, of the processor: others may use it too."""
    heavy = "numpy llama_cpp fastapi uvicorn httpx2 textual gguf huggingface_hub rich asyncio pydantic jinja2 msgspec"
    code = (
        "import sys, time; from edgellm.cli.main import main; code = main(['--help']);"
        f"print('HEAVY', *sorted(set({heavy.split()!r}) & set(sys.modules)));"
        "print(time.process_time()); sys.exit(code)"
    )
    times, bare = [], []
    for _ in range(3):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        *text, found, taken = done.stdout.splitlines()
        times.append(float(taken))
        assert found == "HEAVY"
        nothing = [sys.executable, "-c", "import time; print(time.process_time())"]
        bare.append(float(subprocess.run(nothing, capture_output=True, text=True, check=True).stdout))
    assert "Commands:" in text
    assert min(times) <= max(0.25, 20 * min(bare))  # on a slow processor Python itself takes longer


def test_no_arguments_print_help(capsys: Streams) -> None:
    assert main([]) == 0
    assert "edgellm pull smollm2:135m" in capsys.readouterr().out


def test_help_in_place_of_the_chat_says_why(capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    at_terminal(monkeypatch, edgellm.cli.app)
    monkeypatch.setenv("TERM", "dumb")
    assert main([]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: edgellm")
    assert "no chat here: it needs a terminal that can be drawn on, and TERM=dumb" in err
    assert main(["chat"]) == AppUnavailable.exit_code
    assert "TERM=dumb" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--version"], ["version"]])
def test_version(arguments: list[str], capsys: Streams) -> None:
    assert main(arguments) == 0
    assert capsys.readouterr().out == f"edgellm {__version__}\n"


def test_every_command_explains_itself(capsys: Streams) -> None:
    for command in app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__
        assert main([name, "--help"]) == 0
        text = capsys.readouterr().out
        assert text.startswith(f"Usage: edgellm {name}")
        assert max(map(len, text.splitlines())) <= 80


def test_an_error_is_two_lines_and_its_own_exit_code(
    home: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = DaemonError("it is \x1b]52;c;Zm9v\x07 gone", hint="start\x1b[2J it")
    monkeypatch.setattr(edgellm.cli.models, "list_models", explode(error))
    assert main(["list"]) == 8
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "error: it is ␛]52;c;Zm9v␇ gone\nhint: start␛[2J it\n"


def test_an_error_in_json_is_a_document_too(home: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edgellm.cli.models, "list_models", explode(LibraryError("broken", hint="mend it")))
    assert main(["list", "--json"]) == 7
    out, err = capsys.readouterr()
    assert json.loads(out) == {"error": {"code": "library_error", "message": "broken", "hint": "mend it"}}
    assert "error: broken" in err


def test_an_unknown_exception_is_one_line(home: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edgellm.cli.models, "list_models", explode(ZeroDivisionError("by zero")))
    assert main(["list"]) == 1
    err = capsys.readouterr().err
    assert "error: internal error: ZeroDivisionError: by zero" in err
    assert "--debug" in err
    assert "`edgellm logs`" in err
    assert "Traceback" not in err


@pytest.mark.skipif(sys.platform == "win32", reason="a folder in use stays")
def test_a_folder_that_is_gone_is_told(tmp_path: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGELLM_HOME", "relative")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert main(["list"]) == 2
    assert "error: the folder that this runs in is not there any more" in capsys.readouterr().err


@pytest.mark.parametrize("how", ["before", "after", "environment"])
def test_debug_shows_the_traceback(how: str, home: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edgellm.cli.models, "list_models", explode(ZeroDivisionError("by zero")))
    if how == "environment":
        monkeypatch.setenv("EDGELLM_DEBUG", "1")
    assert main({"before": ["--debug", "list"], "after": ["list", "--debug"]}.get(how, ["list"])) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_is_quiet(home: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edgellm.cli.models, "list_models", explode(KeyboardInterrupt()))
    assert main(["list"]) == 130
    assert capsys.readouterr() == ("", "")


@pytest.mark.skipif(os.name != "posix", reason="how a process ends by a signal")
@pytest.mark.parametrize("module", ["typer", "edgellm.cli.terminal", "edgellm.cli.models", "edgellm.cli.failure"])
def test_ctrl_c_while_a_command_is_read_is_quiet(module: str, home: Path) -> None:
    """At the moment this module is imported, in whatever state the command is then."""
    code = f"""
import os, signal, sys
class Finder:
    def find_spec(self, name, *rest):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
from edgellm.cli.start import main
sys.exit(main())
"""
    command = [sys.executable, "-c", code, "list", "--sort", "age"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (-2, 130)
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.skipif(os.name != "posix", reason="how a process ends by a signal")
def test_ctrl_c_after_the_command_is_quiet(home: Path) -> None:
    code = """
import atexit, os, signal, sys
from edgellm.cli.start import main
atexit.register(os.kill, os.getpid(), signal.SIGINT)
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (-2, "")


@pytest.mark.skipif(os.name != "posix", reason="nohup")
def test_an_ignored_ctrl_c_stays_ignored(home: Path) -> None:
    code = "import signal, sys; from edgellm.cli.start import main; main(); print(signal.getsignal(signal.SIGINT))"
    command = ["sh", "-c", 'trap \'\' INT; exec "$0" -c "$1" --version', sys.executable, code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout.endswith("Handlers.SIG_IGN\n") or done.stdout.splitlines()[-1] == "1"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["lst"], "there is no command lst\nhint: did you mean list? "),
        (["xyzzy"], "there is no command xyzzy\nhint: `edgellm --help`"),
        (["ls"], "there is no command ls\nhint: did you mean list? "),
        (["remove", "x"], "did you mean rm? "),
        (["run", "x", "--temp", "0"], "there is no option --temp\nhint: did you mean --temperature? "),
        (["run", "x", "--temper", "0"], "hint: did you mean --temperature? "),
        (["serve", "--ctx-size", "4096"], "hint: did you mean --context? "),
        (["serve", "-c", "4096"], "hint: did you mean --context? "),
        (["serve", "--n-gpu-layers", "9"], "hint: edgellm_gpu_layers sets it for the daemon. "),
        (["run", "x", "--port", "1"], "hint: edgellm_port sets it for the daemon. `edgellm run --help`"),
        (["run", "x", "-p", "hi"], "hint: the prompt stands by itself: `edgellm run name"),
        (["serve", "x"], "edgellm serve has no place for 'x'\nhint: leave it out: what is served is the model"),
        (["config", "set", "port", "1"], "`edgellm config --path` names"),
        (["run"], "edgellm run needs name: a model, as `edgellm list` shows it"),
        (["rm"], "edgellm rm needs name: models to remove"),
        (["run", "x", "--top-k", "many"], "--top-k takes a whole number, not 'many'"),
        (["run", "x", "--temperature", "hot"], "--temperature takes a number, not 'hot'"),
        (["run", "x", "--top-k"], "--top-k needs a value\nhint: write --top-k value"),
        (["run", "x", "--json=3"], "--json takes no value\nhint: write --json alone"),
        (["run", "x", "--bogus"], "there is no option --bogus\nhint: `edgellm run --help`"),
        (["run", "x", "--tempratur", "1"], "there is no option --tempratur\nhint: did you mean --temperature? "),
        (["list", "x"], "edgellm list has no place for 'x'"),
        (
            ["run", "x", "hi", "--temperature", "-1"],
            "--temperature -1 is not allowed\nhint: --temperature takes 0 or more",
        ),
        (["run", "x", "hi", "--top-k", "9" * 400], f"--top-k {'9' * 400} is not allowed"),
        (["run", "x", "hi", "--max-tokens", "-12345678"], "--max-tokens -12345678 is not allowed"),
        (["run", "x", "hi", "--top-p", "0"], "--top-p 0 is not allowed\nhint: --top-p takes above 0, to 1"),
        (["run", "x", "hi", "--max-tokens", "0"], "--max-tokens 0 is not allowed\nhint: --max-tokens takes"),
        (
            ["serve", "--parallel", "0"],
            "--parallel 0 is not allowed\nhint: --parallel takes a whole number from 1 to 256",
        ),
        (["serve", "--keep-alive", "nan"], "'nan' is not a time"),
        (["plan", "x", "--context", "-1"], "--context -1 is not allowed"),
        (["list", "--partial", "--catalogue"], "--partial and --catalogue are two lists"),
        (["list", "--partial", "--sort", "size"], "--sort is for the models in the store"),
        (["list", "--catalogue", "--sort", "size"], "--sort is for the models in the store"),
        (["list", "--sort", "colour"], "cannot sort by colour"),
        (["stop"], "name a model"),
        (["run", "x", "--keep-alive", "soon"], "'soon' is not a time"),
    ],
)
def test_wrong_use_is_exit_2(arguments: list[str], words: str, daemon: FakeClient, capsys: Streams) -> None:
    put("x")
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert words in err.lower()
    assert "hint: " in err
    assert "Traceback" not in err


def test_what_others_say_names_what_is_here() -> None:
    """No hint leads to a command or an option that is none."""
    import typer

    commands: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
    options = {name for each in commands.values() for param in each.params for name in param.opts}
    settings = {option(name) for name in fields()}
    for word, said in habits._COMMANDS.items():
        assert word not in commands
        first, *rest = said.partition(",")[0].split()
        assert first in commands
        assert {each for each in rest if each.startswith("--")} <= options
    assert set(habits._OPTIONS.values()) <= options | settings
    assert set(habits._NO_PLACE) <= set(commands)


def test_a_closed_pipe_is_quiet(tmp_path: Path) -> None:
    environment = {"EDGELLM_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-m", "edgellm.cli.main", "config"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 141
    process.stderr.close()


@pytest.mark.skipif(os.name != "posix", reason="a shell that closes streams")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(("words", "code"), [("list", 0), ("run nosuch hi", 3), ("--json list --sort age", 2)])
def test_closed_streams_are_no_failure(closed: str, words: str, code: int, home: Path) -> None:
    command = f'"$0" -m edgellm.cli.main {words} {closed}'
    done = subprocess.run(["sh", "-c", command, sys.executable], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert "Traceback" not in done.stderr


def test_help_is_a_command_too(capsys: Streams) -> None:
    for words in ([], ["serve"], ["list"]):
        assert main([*words, "--help"]) == 0
        asked = capsys.readouterr().out
        assert main(["help", *words]) == 0
        assert capsys.readouterr().out == asked
    assert main(["help", "sreve"]) == 2
    assert "did you mean serve?" in capsys.readouterr().err


def test_settings_are_called_as_the_options_are() -> None:
    """What is refused is named as it was written."""
    import inspect

    from typer.models import OptionInfo

    from edgellm.cli import main as commands
    from edgellm.config import fields
    from edgellm.setting import option

    signatures = (inspect.signature(command, eval_str=True) for command in (commands.serve, commands.plan))
    known = {
        name
        for signature in signatures
        for parameter in signature.parameters.values()
        for info in parameter.annotation.__metadata__
        if isinstance(info, OptionInfo)
        for name in (info.default, *(info.param_decls or ()))
    }
    settings = ("host", "port", "context", "engine", "threads", "draft", "max_models", "log_level")
    renamed = ("max_sequences", "kv_type", "api_keys", "keep_alive_s")
    assert {*settings, *renamed} <= set(fields())
    assert {option(name) for name in (*settings, *renamed)} <= known
