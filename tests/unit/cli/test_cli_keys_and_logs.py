"""keys and logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_fakes import Streams, put

from edgellm.cli.logs import Tail
from edgellm.cli.main import main
from edgellm.paths import default_paths


def test_keys(home: Path, capsys: Streams) -> None:
    assert main(["keys"]) == 0
    told = capsys.readouterr().err
    assert "no keys" in told
    assert "`edgellm keys add NAME` makes one" in told
    assert main(["keys", "add", "laptop"]) == 0
    key, said = capsys.readouterr()
    assert key.startswith("edge-")
    assert len(key.splitlines()) == 1
    assert "only time it is shown" in said
    assert "programs on this machine need a key as well" in said
    assert main(["keys", "add", "phone", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "phone"
    assert main(["keys"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == ["laptop", key[:9] + "…", "just", "now"]
    assert key.strip() not in out
    assert main(["keys", "rm", "phone"]) == 0
    assert main(["keys", "rm", "phone"]) == 3
    capsys.readouterr()
    assert main(["keys", "--json"]) == 0
    assert [row["name"] for row in json.loads(capsys.readouterr().out)["keys"]] == ["laptop"]


@pytest.mark.parametrize("words", [["add"], ["rm"], ["laptop"], ["drop", "laptop"]])
def test_keys_misused(words: list[str], home: Path, capsys: Streams) -> None:
    assert main(["keys", *words]) == 2
    assert "`edgellm keys add NAME` makes one" in capsys.readouterr().err


def test_logs(home: Path, capsys: Streams) -> None:
    assert main(["logs"]) == 3
    assert "edgellm serve" in capsys.readouterr().err
    log = default_paths().daemon_log
    log.parent.mkdir(parents=True)
    log.write_bytes(b"".join(b"line %d\n" % number for number in range(100)) + b"\x1b[2J half")
    assert main(["logs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 50
    assert lines[-2:] == ["line 99", "␛[2J half"]
    assert main(["logs", "-n", "1"]) == 0
    assert capsys.readouterr().out == "␛[2J half\n"
    assert main(["logs", "--path"]) == 0
    assert capsys.readouterr().out == f"{log}\n"
    assert main(["logs", "-n", "-1"]) == 2


def test_logs_of_a_model(home: Path, capsys: Streams) -> None:
    put("small:135m")
    assert main(["logs", "small:135m"]) == 3
    assert "no log of small:135m yet" in capsys.readouterr().err
    log = default_paths().worker_log("small:135m")
    log.parent.mkdir(parents=True)
    log.write_text("GGML_ASSERT(false) failed\n")
    assert main(["logs", "small:135m"]) == 0
    assert capsys.readouterr().out == "GGML_ASSERT(false) failed\n"
    assert main(["logs", "../../etc/passwd"]) == 2


def test_an_empty_log_is_told_from_a_command_that_does_nothing(home: Path, capsys: Streams) -> None:
    log = default_paths().daemon_log
    log.parent.mkdir(parents=True)
    log.touch()
    assert main(["logs"]) == 0
    told = capsys.readouterr()
    assert (told.out, told.err) == ("", f"nothing is logged yet in {log}\n")
    log.write_text("a line\n")
    assert main(["logs", "-n", "0"]) == 0
    assert capsys.readouterr().err == ""


def test_a_log_is_followed_also_into_a_new_file(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    log.write_text("one\ntwo\n")
    tail = Tail(log)
    assert tail.last(1) == ["two"]
    assert tail.new() == []
    with log.open("a") as file:
        file.write("three\nfo")
    assert tail.new() == ["three"]
    with log.open("a") as file:
        file.write("ur\n")
    log.replace(tmp_path / "a.log.old")
    assert tail.new() == ["four"]
    log.write_text("five\n")
    assert tail.new() == ["five"]
    tail.close()


def test_following_ends_with_ctrl_c(home: Path, capsys: Streams, monkeypatch: pytest.MonkeyPatch) -> None:
    log = default_paths().daemon_log
    log.parent.mkdir(parents=True)
    log.write_text("one\n")
    naps = iter([None, KeyboardInterrupt()])

    def sleep(seconds: float) -> None:
        with log.open("a") as file:
            file.write("two\n")
        if (nap := next(naps)) is not None:
            raise nap

    monkeypatch.setattr("edgellm.cli.logs.time.sleep", sleep)
    assert main(["logs", "--follow"]) == 130
    assert capsys.readouterr().out == "one\ntwo\n"
