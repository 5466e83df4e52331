"""run: prompts, streaming, figures, interruptions, conversations."""

from __future__ import annotations

import builtins
import errno
import json
from pathlib import Path

import pytest
from cli_fakes import ANSWER, TIMINGS, USAGE, FakeClient, Streams, at_terminal, explode, loaded, pipe, put

import edgellm.cli.answer
import edgellm.cli.chat
import edgellm.cli.daemon
import edgellm.cli.doctor
import edgellm.cli.models
import edgellm.cli.output
import edgellm.cli.pull
import edgellm.cli.run
from edgellm.cli import answer
from edgellm.cli.main import main
from edgellm.client import DaemonGone
from edgellm.contracts.events import (
    Failed,
    TextDelta,
)
from edgellm.contracts.request import Message, Messages, Sampling, Text
from edgellm.errors import InvalidRequest, WorkerDied


def test_run_streams_plain_text(daemon: FakeClient, capsys: Streams) -> None:
    put("m")
    assert main(["run", "m", "Why", "is the sky blue?", "--seed", "7", "--stop", "a", "--stop", "b"]) == 0
    out, err = capsys.readouterr()
    assert out == "Because sunlight scatters.\n"
    assert err == ""
    request = daemon.requests[0]
    assert request.model == "m:latest"
    assert request.prompt == Messages((Message("user", "Why is the sky blue?"),))
    assert request.sampling == Sampling(seed=7)
    assert request.stop == ("a", "b")


def test_run_passes_every_option(daemon: FakeClient) -> None:
    put("m")
    options = "--temperature 0 --top-p 0.5 --top-k 3 --max-tokens 9 --keep-alive 5m --system Brief. --preset code"
    assert main(["run", "m", "hi", *options.split()]) == 0
    request = daemon.requests[0]
    assert request.sampling == Sampling(temperature=0.0, top_p=0.5, top_k=3)
    assert (request.max_tokens, request.keep_alive_s, request.preset) == (9, 300.0, "code")
    assert request.prompt == Messages((Message("system", "Brief."), Message("user", "hi")))


def test_an_unknown_preset_is_refused_before_anything_is_started(daemon: FakeClient, capsys: Streams) -> None:
    put("m")
    assert main(["run", "m", "hi", "--preset", "poetry"]) == 2
    assert "chat, code, maths, creative, strict" in capsys.readouterr().err
    assert not daemon.requests


@pytest.mark.parametrize(
    ("words", "piped", "prompt"),
    [
        ([], b"from a pipe\n", "from a pipe"),
        (["Sum up:"], b"\xef\xbb\xbfa text\r\n", "Sum up:\n\na text"),
        (["--", "--json", "-5"], b"", "--json -5"),
        (["hi"], "grün".encode("utf-16"), "hi\n\ngrün"),
    ],
)
def test_where_the_prompt_comes_from(
    words: list[str], piped: bytes, prompt: str, daemon: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("m")
    pipe(monkeypatch, piped)
    assert main(["run", "m", *words]) == 0
    assert daemon.requests[0].prompt == Messages((Message("user", prompt),))


@pytest.mark.parametrize(("piped", "words"), [(b" \n", "the prompt is empty"), (b"\x89PNG\xff", "is not text")])
def test_prompts_that_are_none(
    piped: bytes, words: str, daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("m")
    pipe(monkeypatch, piped)
    assert main(["run", "m"]) == 2
    assert words in capsys.readouterr().err
    assert daemon.requests == []


@pytest.mark.parametrize("name", ["./model.gguf", "model.gguf"])
def test_a_file_in_place_of_a_name(
    name: str, daemon: FakeClient, tmp_path: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(b"GGUF")
    assert main(["run", name, "hi"]) in (2, 3)
    assert f"edgellm pull {tmp_path}/model.gguf --name NAME" in capsys.readouterr().err
    assert daemon.requests == []


def test_run_json(daemon: FakeClient, capsys: Streams) -> None:
    put("m")
    assert main(["run", "m", "hi", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["text"] == "Because sunlight scatters.\n"
    assert document["model"] == "m:latest"
    assert document["finish_reason"] == "stop"
    assert document["usage"] == {"prompt_tokens": 31, "completion_tokens": 96, "cached_tokens": 8}
    assert document["timings"]["decode_s"] == 0.95


def test_footer() -> None:
    turn = answer.Turn("x", "length", USAGE, TIMINGS, first_s=0.163)
    assert answer.footer(turn) == (
        "── this device · 0.16 s to first token · 100 tok/s · 31 + 96 tokens (8 cached) · cut at the token limit"
    )
    assert "(0.90 s of it loading)" in answer.footer(answer.Turn(first_s=1.1, load_s=0.9))


def test_footer_only_where_it_is_wanted(daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    put("m")
    assert main(["run", "m", "hi", "-v"]) == 0
    assert "31 + 96 tokens" in capsys.readouterr().err
    at_terminal(monkeypatch, edgellm.cli.output)
    assert main(["run", "m", "hi"]) == 0
    err = capsys.readouterr().err
    assert "loading the model … 50 %" in err
    assert err.splitlines()[-1].startswith("── this device")
    assert main(["run", "m", "hi", "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_answers_are_inert_on_a_terminal_and_exact_in_a_pipe(
    daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("m")
    daemon.script = (TextDelta("a\x1b]52;c;x\x07"), TextDelta("\n\n"), TextDelta("b\n\n"), *ANSWER[-2:])
    assert main(["run", "m", "hi"]) == 0
    assert capsys.readouterr().out == "a\x1b]52;c;x\x07\n\nb\n"
    at_terminal(monkeypatch, edgellm.cli.output)
    assert main(["run", "m", "hi"]) == 0
    assert capsys.readouterr().out == "a␛]52;c;x␇\n\nb\n"


def test_a_failed_answer(daemon: FakeClient, capsys: Streams) -> None:
    put("m")
    daemon.script = (TextDelta("Beca"), Failed(WorkerDied("it died", hint="send it again").info))
    assert main(["run", "m", "hi"]) == 5
    assert capsys.readouterr() == ("Beca\n", "error: it died\nhint: send it again\n")


def test_ctrl_c_stops_the_answer(daemon: FakeClient, capsys: Streams) -> None:
    put("m")
    daemon.script = (TextDelta("Beca"), KeyboardInterrupt())
    assert main(["run", "m", "hi"]) == 130
    assert capsys.readouterr() == ("Beca\n", "")
    assert daemon.cancelled == 1


def test_a_closed_pipe_cancels_the_answer(daemon: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    put("m")
    monkeypatch.setattr("edgellm.cli.failure._abandon_stdout", lambda: None)
    monkeypatch.setattr(edgellm.cli.output.Answer, "write", explode(BrokenPipeError(errno.EPIPE, "Broken pipe")))
    assert main(["run", "m", "hi"]) == 141
    assert daemon.cancelled == 1


def test_a_base_model_continues_text(daemon: FakeClient, capsys: Streams) -> None:
    put("base", chat=False)
    assert main(["run", "base", "The sky is"]) == 0
    assert daemon.requests[0].prompt == Text("The sky is")
    assert main(["run", "base", "The sky is", "--system", "Be brief"]) == 2
    assert "no chat template" in capsys.readouterr().err


def test_the_daemon_is_started_with_the_flags(daemon: FakeClient) -> None:
    put("m")
    daemon.running = False
    assert main(["run", "m", "hi", "--context", "1024"]) == 0
    settings, preload = daemon.started
    assert settings.context == 1024
    assert preload == "m:latest"


def test_context_of_a_running_daemon_is_not_ignored(daemon: FakeClient, capsys: Streams) -> None:
    put("m")
    daemon.models = [loaded("m:latest", context=2048)]
    assert main(["run", "m", "hi", "--context", "2048"]) == 0
    assert main(["run", "m", "hi", "--context", "4096"]) == 2
    err = capsys.readouterr().err
    assert "4,096" in err
    assert "2,048" in err
    assert "edgellm stop --all" in err


def test_conversation(daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    put("m")
    at_terminal(monkeypatch, edgellm.cli.run)
    lines = iter(["Hello", "", "/help", "And then?", "/bye"])
    monkeypatch.setattr(builtins, "input", lambda prompt: next(lines))
    assert main(["run", "m", "--system", "Brief."]) == 0
    assert daemon.requests[1].prompt == Messages(
        (
            Message("system", "Brief."),
            Message("user", "Hello"),
            Message("assistant", "Because sunlight scatters.\n"),
            Message("user", "And then?"),
        )
    )
    out, err = capsys.readouterr()
    assert out == "Because sunlight scatters.\n" * 2
    assert err.count("Ctrl+D or /bye leaves") == 2  # /help says it again, and is no question


def test_conversation_survives_a_stopped_and_a_failed_answer(
    daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("m")
    at_terminal(monkeypatch, edgellm.cli.run)
    scripts = iter([(TextDelta("Half"), KeyboardInterrupt()), (Failed(InvalidRequest("too long").info),), ANSWER])
    lines = iter(["one", "two", "three"])

    def read(prompt: str) -> str:
        daemon.script = next(scripts, ())
        line = next(lines, None)
        if line is None:
            raise EOFError
        return line

    monkeypatch.setattr(builtins, "input", read)
    assert main(["run", "m"]) == 0
    assert daemon.requests[2].prompt == Messages(
        (Message("user", "one"), Message("assistant", "Half"), Message("user", "three"))
    )
    out, err = capsys.readouterr()
    assert "error: too long" in err
    assert out == "Half\nBecause sunlight scatters.\n\n"  # the last for the shell's prompt


def test_conversation_outlives_its_daemon(daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    put("m")
    at_terminal(monkeypatch, edgellm.cli.run)
    scripts = iter([ANSWER, (Failed(DaemonGone("it broke off").info),), ANSWER])
    lines = iter(["one", "two", "three"])

    def read(prompt: str) -> str:
        daemon.script = next(scripts, ())
        line = next(lines, None)
        return "/bye" if line is None else line

    started: list[str | None] = []

    def start(paths: object, settings: object, preload: str | None = None) -> FakeClient:
        started.append(preload)
        return daemon

    monkeypatch.setattr(builtins, "input", read)
    monkeypatch.setattr(daemon, "connect_or_start", start)
    assert main(["run", "m"]) == 0
    assert started == ["m:latest"]
    assert len(daemon.requests[2].prompt.messages) == 3  # type: ignore[union-attr]
    assert "error: it broke off" in capsys.readouterr().err
