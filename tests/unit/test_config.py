"""Settings: precedence, sources, and errors that name the key, the place and the way out."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from edgellm.config import Settings, fields, load_settings
from edgellm.errors import ConfigError
from edgellm.paths import Paths
from edgellm.setting import option, shown


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    (tmp_path / "config").mkdir()
    return Paths(tmp_path, tmp_path / "config", tmp_path / "run", tmp_path / "logs")


def write(paths: Paths, text: str) -> None:
    paths.config_file.write_text(text, encoding="utf-8")


def refuse(paths: Paths, flags: dict[str, object], environment: dict[str, str]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        load_settings(paths, flags, environment)
    return caught.value


def test_defaults_are_themselves_allowed(paths: Paths) -> None:
    """Every default passes the check that a user's value must pass, and has words for the docs."""
    defaults = {name: field.default for name, field in fields().items()}
    resolved = load_settings(paths, defaults, {})
    assert resolved.settings == Settings()
    assert all(field.meaning and field.allowed for field in fields().values())


def test_precedence_and_sources(paths: Paths, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    write(paths, "port = 1\nthreads = 1\ncontext = 1\n")
    environment = {"EDGELLM_THREADS": "2", "EDGELLM_CONTEXT": "2"}
    resolved = load_settings(paths, {"context": 3, "top_k": None}, environment)
    settings, sources = resolved.settings, resolved.sources
    assert (settings.port, settings.threads, settings.context, settings.top_k) == (1, 2, 3, None)
    assert sources["port"] == str(paths.config_file)
    assert sources["threads"] == "EDGELLM_THREADS"
    assert sources["context"] == "flag"
    assert sources["top_k"] == "default"
    assert set(sources) == set(Settings.__struct_fields__)


def test_types_from_every_layer(paths: Paths) -> None:
    write(paths, 'api_keys = ["a", "b"]\nkeep_alive_s = -1\nlog_level = "debug"\n')
    environment = {
        "EDGELLM_MMAP": "off",
        "EDGELLM_ALLOWED_HOSTS": "one.test, two.test,",
        "EDGELLM_TOP_P": "0.5",
    }
    settings = load_settings(paths, {"mlock": True}, environment).settings
    assert settings.api_keys == ("a", "b")
    assert isinstance(settings.keep_alive_s, float)
    assert settings.keep_alive_s == -1
    assert settings.mmap is False
    assert settings.mlock is True
    assert settings.allowed_hosts == ("one.test", "two.test")
    assert settings.top_p == 0.5
    assert settings.log_level == "debug"


def test_empty_variable_is_unset(paths: Paths) -> None:
    write(paths, 'api_keys = ["secret"]\n')
    resolved = load_settings(paths, {}, {"EDGELLM_API_KEYS": "", "EDGELLM_PORT": " "})
    assert resolved.settings.api_keys == ("secret",)
    assert resolved.sources["port"] == "default"


def test_unknown_key_in_file_names_the_nearest_and_the_file(paths: Paths) -> None:
    write(paths, "prot = 1\n")
    error = refuse(paths, {}, {})
    assert "prot" in error.message
    assert str(paths.config_file) in error.message
    assert "did you mean port?" in (error.hint or "")


def test_a_section_in_the_file_says_so(paths: Paths) -> None:
    write(paths, "[server]\nport = 1\n")
    assert "[section]" in (refuse(paths, {}, {}).hint or "")


@pytest.mark.parametrize(
    ("variable", "near"),
    [("EDGELLM_PROT", "EDGELLM_PORT"), ("EDGELLM_HOMES", "EDGELLM_HOME"), ("EDGELLM_port", "EDGELLM_PORT")],
)
def test_unknown_variable_names_the_nearest(paths: Paths, variable: str, near: str) -> None:
    error = refuse(paths, {}, {variable: "1"})
    assert variable in error.message
    assert f"did you mean {near}?" in (error.hint or "")


@pytest.mark.parametrize("name", ["EDGELLM_FOO", "EDGELLM_"])
def test_where_nothing_is_near_nothing_is_guessed(paths: Paths, name: str) -> None:
    error = refuse(paths, {}, {name: "1"})
    assert error.hint == "mend or remove it; `edgellm config` lists all"


def test_variables_that_are_not_settings_pass(paths: Paths) -> None:
    environment = {"EDGELLM_HOME": "/x", "EDGELLM_DEBUG": "1", "PATH": "/bin", "EDGE": "1"}
    assert load_settings(paths, {}, environment).settings == Settings()


def test_unknown_flag(paths: Paths) -> None:
    assert "prot" in refuse(paths, {"prot": 1}, {}).message


@pytest.mark.parametrize("asked", [3, 1000, 5000])
def test_more_threads_than_the_machine_has_cpus_are_refused_from_anywhere(
    paths: Paths, monkeypatch: pytest.MonkeyPatch, asked: int
) -> None:
    """Engines start all of them at once, and where the system refuses one the worker is gone."""
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    allowed = "threads takes a whole number from 0 to 2, the CPUs of this machine; 0 lets edgellm choose"
    assert load_settings(paths, {"threads": 2}, {}).settings.threads == 2
    assert refuse(paths, {"threads": asked}, {}).hint == f"--{allowed}"
    assert refuse(paths, {}, {"EDGELLM_THREADS": str(asked)}).hint == allowed
    write(paths, f"threads = {asked}\n")
    assert refuse(paths, {}, {}).hint == allowed


@pytest.mark.parametrize(
    ("variable", "text", "allowed"),
    [
        ("EDGELLM_PORT", "99999", "a whole number from 0 to 65535"),
        ("EDGELLM_PORT", "eleven", "a whole number"),
        ("EDGELLM_PORT", "1.5", "a whole number"),
        ("EDGELLM_MAX_SEQUENCES", "0", "from 1 to 256"),
        ("EDGELLM_TOP_P", "0", "above 0 and at most 1"),
        ("EDGELLM_TOP_K", "1.5", "a whole number from 0 to 2147483647"),
        ("EDGELLM_PRESET", "poetry", "one of chat, code, maths, creative, strict"),
        ("EDGELLM_MEMORY_RESERVE", "nan", "a number"),
        ("EDGELLM_KEEP_ALIVE_S", "inf", "a number"),
        ("EDGELLM_MMAP", "maybe", "true or false"),
        ("EDGELLM_LOG_LEVEL", "loud", "debug, info, warning, error"),
    ],
)
def test_bad_value_names_key_value_and_allowed(paths: Paths, variable: str, text: str, allowed: str) -> None:
    error = refuse(paths, {}, {variable: text})
    name = variable.removeprefix("EDGELLM_").lower()
    assert error.param == name
    assert name in error.message
    assert text in error.message
    assert variable in error.message
    assert allowed in (error.hint or "")
    assert error.exit_code == 2


@pytest.mark.parametrize("line", ['port = "11435"', "port = true", "mmap = 1", 'host = ""', "keep_alive_s = nan"])
def test_wrong_types_in_the_file(paths: Paths, line: str) -> None:
    write(paths, line)
    error = refuse(paths, {}, {})
    assert str(paths.config_file) in error.message


@pytest.mark.parametrize("content", [b"port = ", b"\xff\xfe", b"port = 1\nport = 2"])
def test_unreadable_file_names_itself(paths: Paths, content: bytes) -> None:
    paths.config_file.write_bytes(content)
    assert str(paths.config_file) in refuse(paths, {}, {}).message


def test_file_that_is_a_folder(paths: Paths) -> None:
    paths.config_file.mkdir()
    assert "cannot be read" in refuse(paths, {}, {}).message


@pytest.mark.parametrize(
    "content", ['api_keys = "hunter2"', 'api_keys = ["hunter2", 5]', 'api_keys = ["hunter2", " "]']
)
def test_secrets_are_not_in_errors(paths: Paths, content: str) -> None:
    write(paths, content)
    error = refuse(paths, {}, {})
    assert "api_keys" in error.message
    assert "hunter2" not in f"{error.message} {error.hint}"


def test_shown_values_are_toml_and_hide_secrets() -> None:
    table = fields()
    assert shown(table["api_keys"], ("hunter2",)) == "(1 set, not shown)"
    import tomllib

    settings = msgspec.structs.replace(Settings(), host='a"b', allowed_hosts=("x", "y"))
    values = {name: shown(field, getattr(settings, name)) for name, field in table.items()}
    assert values["top_k"] == "(not set)"
    read = tomllib.loads("\n".join(f"{name} = {value}" for name, value in values.items() if value[0] != "("))
    assert read["host"] == 'a"b'
    assert read["allowed_hosts"] == ["x", "y"]
    assert read["mmap"] is True
    assert read["queue_tokens"] == 1_000_000


def test_every_number_has_an_end(paths: Paths) -> None:
    """What is counted overflows somewhere below, in C or on a screen, if nothing bounds it here."""
    for name, field in fields().items():
        if field.kind is int:
            error = refuse(paths, {name: 10**20}, {})
            assert option(name) in error.message
            assert error.param == name
            assert " to " in (error.hint or "")


def test_what_a_text_may_be_is_told_as_it_is(paths: Paths) -> None:
    assert load_settings(paths, {"draft": "", "kv_type": "f16"}, {}).settings.draft == ""
    assert fields()["draft"].allowed == "a text"
    with pytest.raises(ConfigError) as caught:
        load_settings(paths, {"host": ""}, {})
    assert caught.value.hint == "--host takes a text that is not empty"


@pytest.mark.parametrize("variable", ["EDGELLM_DRAFT", "EDGELLM_ALLOWED_HOSTS"])
def test_bytes_that_are_no_text_are_refused(paths: Paths, variable: str) -> None:
    name = variable.removeprefix("EDGELLM_").lower()
    assert refuse(paths, {}, {variable: "a\udcff"}).message.endswith(f"from {variable}, is not allowed")
    assert refuse(paths, {name: "a\udcff" if name == "draft" else ["a\udcff"]}, {}).message.endswith("is not allowed")
