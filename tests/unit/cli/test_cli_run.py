"""run: prompts, streaming, figures, interruptions."""

from __future__ import annotations

import errno
import json
from pathlib import Path

import pytest
from cli_fakes import ANSWER, TIMINGS, USAGE, FakeClient, Streams, at_terminal, explode, loaded, pipe, put

import edgellm.cli.answer
import edgellm.cli.daemon
import edgellm.cli.doctor
import edgellm.cli.models
import edgellm.cli.output
import edgellm.cli.pull
import edgellm.cli.run
from edgellm.cli import answer, terminal
from edgellm.cli.main import main
from edgellm.cli.render import live
from edgellm.config import load_settings, told
from edgellm.contracts.engine import Unavailable
from edgellm.contracts.events import (
    Failed,
    ReasoningDelta,
    Slid,
    TextDelta,
)
from edgellm.contracts.request import Message, Messages, Sampling, Text
from edgellm.errors import EngineUnavailable, WorkerDied
from edgellm.library.latest import latest
from edgellm.paths import default_paths


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


def test_a_file_in_a_prompt_of_arguments_is_told_to_be_letters(
    daemon: FakeClient, tmp_path: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("m")
    monkeypatch.chdir(tmp_path)
    Path("notes.md").write_text("secret")
    told = "@notes.md is sent as these letters; `< notes.md` sends what is in it"
    assert main(["run", "m", "Read @notes.md, ask @nobody"]) == 0
    assert capsys.readouterr().err == ""  # a script knows what it does
    at_terminal(monkeypatch, edgellm.cli.output)
    assert main(["run", "m", "Read @notes.md, ask @nobody"]) == 0
    said = capsys.readouterr().err
    assert told in said
    assert "@nobody" not in said
    assert [request.prompt for request in daemon.requests] == [
        Messages((Message("user", "Read @notes.md, ask @nobody"),))
    ] * 2


def test_run_passes_every_option(daemon: FakeClient) -> None:
    put("m")
    options = "--temperature 0 --top-p 0.5 --top-k 3 --max-tokens 9 --keep-alive 5m --system Brief. --preset code"
    assert main(["run", "m", "hi", *options.split()]) == 0
    request = daemon.requests[0]
    assert request.sampling == Sampling(temperature=0.0, top_p=0.5, top_k=3)
    assert (request.max_tokens, request.keep_alive_s, request.preset) == (9, 300.0, "code")
    assert request.prompt == Messages((Message("system", "Brief."), Message("user", "hi")))


def test_the_chat_goes_on_with_what_was_talked_to(daemon: FakeClient) -> None:
    put("m")
    put("base", chat=False)
    for name in ("m", "base"):
        assert main(["run", name, "hi"]) == 0
    assert latest(default_paths()) == "m:latest"


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
    assert document["timings"] == {
        "queue_s": 0.01,
        "prefill_s": 0.15,
        "decode_s": 0.95,
        "total_s": 1.11,
        "ttft_s": 0.16,
        "prompt_tokens_per_s": 153.33,
        "drafted": 0,
        "accepted": 0,
        "tokens_per_s": 100.0,
    }


def test_footer() -> None:
    turn = answer.Turn("x", reason="length", usage=USAGE, timings=TIMINGS, first_s=0.163)
    assert answer.footer(turn, "llama.cpp") == (
        "── this device · llama.cpp · 0.16 s to first token · 100 tok/s · 31 + 96 tokens (8 cached)"
        " · cut at the token limit"
    )
    assert "(0.90 s of it loading)" in answer.footer(answer.Turn(first_s=1.1, load_s=0.9))


def test_footer_only_where_it_is_wanted(daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    put("m")
    assert main(["run", "m", "hi", "-v"]) == 0
    assert "31 + 96 tokens" in capsys.readouterr().err
    daemon.models = [loaded("m:latest", engine="llama.cpp")]
    at_terminal(monkeypatch, edgellm.cli.output)
    assert main(["run", "m", "hi"]) == 0
    err = capsys.readouterr().err
    assert "loading the model … 50 %" in err
    assert err.splitlines()[-2].startswith("── this device · llama.cpp · ")
    assert main(["run", "m", "hi", "-q"]) == 0
    assert capsys.readouterr().err == ""


HOSTILE = (TextDelta("a\x1b]52;c;x\x07"), TextDelta("\n\n"), TextDelta("**b**\n\n"), *ANSWER[-2:])


def test_a_pipe_gets_what_was_generated(daemon: FakeClient, capsys: Streams) -> None:
    put("m")
    daemon.script = HOSTILE
    assert main(["run", "m", "hi"]) == 0
    assert capsys.readouterr().out == "a\x1b]52;c;x\x07\n\n**b**\n\n"


def test_a_terminal_that_only_prints_gets_inert_text(
    daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("m")
    daemon.script = HOSTILE
    at_terminal(monkeypatch, live)
    monkeypatch.setenv("TERM", "dumb")
    assert main(["run", "m", "hi"]) == 0
    assert capsys.readouterr().out == "a␛]52;c;x␇\n\n**b**\n"


def test_a_terminal_gets_rendered_markdown(
    daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("m")
    put("base", chat=False)
    daemon.script = HOSTILE
    at_terminal(monkeypatch, live, terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["run", "m", "hi"]) == 0
    assert capsys.readouterr().out == "a␛]52;c;x␇\n\n\x1b[1mb\x1b[0m\n"
    for words in (["run", "m", "hi", "--plain"], ["run", "base", "hi"]):
        assert main(words) == 0
        assert capsys.readouterr().out == "a␛]52;c;x␇\n\n**b**\n"


def test_thoughts_are_shown_and_are_no_data(
    daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("m")
    daemon.script = (ReasoningDelta("Let me\nthink.\n"), *ANSWER[-4:])
    assert main(["run", "m", "hi"]) == 0
    assert capsys.readouterr().out == "Because sunlight scatters.\n"
    assert main(["run", "m", "hi", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["text"], document["reasoning"]) == ("Because sunlight scatters.\n", "Let me\nthink.\n")
    at_terminal(monkeypatch, live, terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert main(["run", "m", "hi"]) == 0
    shown = capsys.readouterr().out
    assert shown == "\x1b[2mLet me\x1b[0m\n\x1b[2mthink.\x1b[0m\n\nBecause sunlight scatters.\n"
    monkeypatch.setenv("TERM", "dumb")
    assert main(["run", "m", "hi"]) == 0
    assert capsys.readouterr().out == "Let me\nthink.\n\nBecause sunlight scatters.\n"


def test_a_context_that_slid_is_no_secret(daemon: FakeClient, capsys: Streams) -> None:
    put("m")
    daemon.script = (*ANSWER[:3], Slid(1200), *ANSWER[3:])
    assert main(["run", "m", "hi", "-v"]) == 0
    assert "1,200 oldest tokens forgotten" in capsys.readouterr().err


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
    monkeypatch.setattr(live.Exact, "write", explode(BrokenPipeError(errno.EPIPE, "Broken pipe")))
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
    assert main(["run", "m", "hi", "--context", "999999"]) == 2
    assert "the model was trained for" in capsys.readouterr().err


def test_an_idle_daemon_in_the_background_makes_way_for_what_is_asked(daemon: FakeClient) -> None:
    put("m")
    daemon.replaceable = True
    daemon.models = [loaded("m:latest", context=2048)]
    assert main(["run", "m", "hi", "--context", "2048"]) == 0
    assert not daemon.started
    assert main(["run", "m", "hi", "--context", "4096"]) == 0
    assert daemon.started[0].context == 4096


def test_a_daemon_that_works_does_not_make_way_for_an_engine_that_cannot_run_here(
    daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("m")
    daemon.replaceable = True
    daemon.models = [loaded("m:latest", engine="llama.cpp")]
    monkeypatch.setattr("edgellm.plugins._present", lambda library: library != "torch")
    monkeypatch.setattr("edgellm.plugins.probe", lambda name: Unavailable("torch is not installed", "install it"))
    assert main(["run", "m", "hi", "--engine", "torch"]) == EngineUnavailable.exit_code
    err = capsys.readouterr().err
    assert "PyTorch is not available: torch is not installed" in err
    assert "install it" in err
    assert daemon.running
    assert not daemon.started


def test_settings_that_a_daemon_was_started_with_are_told_where_others_are_set_now(
    daemon: FakeClient, capsys: Streams, monkeypatch: pytest.MonkeyPatch
) -> None:
    put("m")
    daemon.models = [loaded("m:latest", context=4096, engine="PyTorch")]
    daemon.settings = told(load_settings(default_paths(), {"engine": "torch", "context": 4096}).settings)
    says = "the daemon still has "
    for asked, words in (
        ([], 'engine = "torch" (now "auto"), context = 4096 (now 0);'),
        (["--engine", "auto", "--context", "4096"], 'engine = "torch" (now "auto");'),
        (["--engine", "torch", "--context", "2048"], ""),
        (["--quiet"], ""),
    ):
        for _ in range(2):  # once is enough
            assert main(["run", "m", "hi", *asked]) == 0
            err = capsys.readouterr().err
            assert says + words in err if words else says not in err
            words = ""
    monkeypatch.setenv("EDGELLM_ENGINE", "torch")
    monkeypatch.setenv("EDGELLM_CONTEXT", "4096")
    assert main(["run", "m", "hi"]) == 0
    assert says not in capsys.readouterr().err


def test_an_engine_is_asked_for_and_a_running_daemon_has_its_own(daemon: FakeClient, capsys: Streams) -> None:
    put("m")
    daemon.models = [loaded("m:latest", engine="llama.cpp")]
    assert main(["run", "m", "hi", "--engine", "llamacpp"]) == 0
    assert main(["run", "m", "hi", "--engine", "auto"]) == 0
    daemon.models = [loaded("m:latest", engine="another")]
    assert main(["run", "m", "hi", "--engine", "llamacpp"]) == 2
    assert "m:latest runs on another" in capsys.readouterr().err
    assert main(["run", "m", "hi", "--engine", "lama"]) == EngineUnavailable.exit_code
    assert "no engine named lama" in capsys.readouterr().err
    daemon.running = False
    assert main(["run", "m", "hi", "--engine", "llamacpp"]) == 0
    assert daemon.started[0].engine == "llamacpp"


def test_a_name_too_long_for_any_file_is_no_name(home: Path, capsys: Streams) -> None:
    for arguments in (["run", "x" * 5000, "hi"], ["pull", "x" * 5000]):
        assert main(arguments) == 2
        told = capsys.readouterr().err
        assert "is not a model name" in told
        assert len(told) < 400
