"""Every setting, in one table: name, type, allowed values, meaning and default.

Precedence: defaults < config.toml < EDGELLM_* environment < flags. `load_settings` records where each value
came from. Unknown keys are errors that name the nearest known one; a value out of range names what is allowed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, get_type_hints

import msgspec
from msgspec import Meta

from edgellm.contracts.engine import ENGINE_STATE, DraftMode
from edgellm.contracts.ranges import MOST
from edgellm.errors import ConfigError
from edgellm.paths import Paths
from edgellm.presets import PresetName
from edgellm.setting import PREFIX, Field, checked, described, from_text, shown
from edgellm.small_files import read_small_text, why
from edgellm.spelling import meant

# Variables of ours that are not settings: where things live, and whether errors show their traceback.
NOT_SETTINGS = frozenset({"EDGELLM_HOME", "EDGELLM_DEBUG", ENGINE_STATE})
LogLevel = Literal["debug", "info", "warning", "error"]


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What can be set. Sizes are in tokens, times in seconds; 0 often means "decide for me"."""

    host: Annotated[str, Meta(min_length=1, description="Address the server listens on")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535, description="TCP port of the server; 0 takes any free one")] = 11435
    api_keys: Annotated[
        tuple[str, ...], Meta(description="Keys that open the daemon, beside those of `edgellm keys`")
    ] = ()
    allowed_hosts: Annotated[
        tuple[str, ...], Meta(description="Host names clients may use besides localhost and addresses")
    ] = ()
    allowed_origins: Annotated[
        tuple[str, ...], Meta(description="Web origins whose pages may call the server; none by default")
    ] = ()
    engine: Annotated[
        str,
        Meta(min_length=1, description="Which engine runs models: llamacpp, torch; auto: llama.cpp where it can"),
    ] = "auto"
    context: Annotated[
        int,
        Meta(
            ge=0,
            le=MOST,
            description="Longest conversation in tokens, up to a model's own; 0: at most 8192, as memory allows",
        ),
    ] = 0
    capacity: Annotated[
        int, Meta(ge=0, le=MOST, description="KV room in tokens over all conversations; 0: up to twice the context")
    ] = 0
    max_sequences: Annotated[int, Meta(ge=1, le=256, description="Conversations computed at once")] = 16
    step_s: Annotated[
        float, Meta(gt=0.0, le=60.0, description="Longest step of prompt processing, in predicted seconds")
    ] = 0.5
    decode_step_s: Annotated[float, Meta(gt=0.0, le=60.0, description="The same while anyone is reading an answer")] = (
        0.2
    )
    cache_tokens: Annotated[
        int,
        Meta(
            ge=0,
            le=MOST,
            description="Tokens of idle conversations left in the KV room while others run; the rest goes to RAM",
        ),
    ] = 0
    cache_ram_mib: Annotated[
        int, Meta(ge=0, le=MOST, description="RAM for conversations that left the KV room, in MiB per model")
    ] = 512
    batch_tokens: Annotated[int, Meta(ge=1, le=65536, description="Most tokens of one step")] = 512
    kv_type: Annotated[
        str,
        Meta(description="How keys and values are stored: f16, q8_0, …; auto: as the engine is fastest"),
    ] = "auto"
    draft: Annotated[
        str, Meta(description="Name of a smaller model of the same vocabulary that guesses for the one in use")
    ] = ""
    drafts: Annotated[
        DraftMode, Meta(description="Guess ahead: auto where it cannot change the text, always where it pays, off")
    ] = "auto"
    exact: Annotated[
        bool, Meta(description="The same text for the same request, alone or in company, cached or not")
    ] = False
    threads: Annotated[
        int,
        Meta(ge=0, le=1024, description="CPU threads, at most the machine's CPUs; 0: the usable physical cores"),
    ] = 0
    mmap: Annotated[bool, Meta(description="Map model files into memory instead of reading them")] = True
    mlock: Annotated[bool, Meta(description="Pin the model in memory, so that it is never swapped out")] = False
    spill: Annotated[
        bool, Meta(description="Run models whose weights do not fit in memory, reading them from disk as they are used")
    ] = False
    gpu_layers: Annotated[
        int, Meta(ge=0, le=10_000, description="Layers that llama.cpp keeps on the GPU; PyTorch: 0, it decides, or all")
    ] = 0
    keep_alive_s: Annotated[
        float, Meta(description="Seconds an idle model stays loaded; below 0: for as long as the daemon runs")
    ] = 300.0
    max_models: Annotated[int, Meta(ge=0, le=MOST, description="Models loaded at once; 0: as memory allows")] = 0
    memory_reserve: Annotated[
        float, Meta(ge=0.0, le=0.95, description="Fraction of the memory that is left to others")
    ] = 0.10
    idle_exit_s: Annotated[
        float, Meta(gt=0.0, description="Seconds without work after which a background daemon leaves")
    ] = 300.0
    shutdown_grace_s: Annotated[
        float, Meta(ge=0.0, le=3600.0, description="Seconds that running answers get when the daemon stops")
    ] = 10.0
    queue_requests: Annotated[int, Meta(ge=1, le=MOST, description="Requests that may wait; more are refused")] = 256
    queue_tokens: Annotated[int, Meta(ge=1, le=MOST, description="Prompt tokens that may wait; more are refused")] = (
        1_000_000
    )
    request_timeout_s: Annotated[
        float, Meta(ge=0.0, description="Longest a whole answer may take, in seconds; 0: no limit")
    ] = 0.0
    heartbeat_timeout_s: Annotated[
        float, Meta(ge=2.0, le=600.0, description="Seconds of silence after which a worker counts as dead")
    ] = 10.0
    worker_start_s: Annotated[
        float, Meta(ge=2.0, le=3600.0, description="Seconds a worker process may take until it begins to load")
    ] = 60.0
    room_wait_s: Annotated[
        float, Meta(ge=0.0, le=3600.0, description="Seconds a request waits for busy models to make room for its own")
    ] = 60.0
    log_level: Annotated[LogLevel, Meta(description="How much is logged")] = "info"
    preset: Annotated[
        PresetName, Meta(description="Sampling for which kind of task, where neither request nor model says")
    ] = "chat"
    temperature: (
        Annotated[
            float, Meta(ge=0.0, le=100.0, description="Randomness, in place of the preset's; 0 takes the likeliest")
        ]
        | None
    ) = None
    top_p: (
        Annotated[
            float,
            Meta(gt=0.0, le=1.0, description="Keep the likeliest tokens up to this probability, not the preset's"),
        ]
        | None
    ) = None
    top_k: (
        Annotated[
            int, Meta(ge=0, le=MOST, description="Keep this many of the likeliest tokens, not the preset's; 0: all")
        ]
        | None
    ) = None


class Resolved(msgspec.Struct, frozen=True):
    """The settings in force, and for each its source: "default", a file, a variable, or a flag."""

    settings: Settings
    sources: dict[str, str]


def fields() -> dict[str, Field]:
    """Every setting by name, in the table's order."""
    hints = get_type_hints(Settings, include_extras=True)
    defaults = Settings()
    return {name: described(name, hints[name], getattr(defaults, name)) for name in Settings.__struct_fields__}


def load_settings(paths: Paths, flags: Mapping[str, object], environment: Mapping[str, str] | None = None) -> Resolved:
    """Resolve every setting; raises ConfigError naming key, value and where it stands.

    `flags` maps setting names to values, None meaning not given. `environment` defaults to the process's own;
    an empty variable counts as unset, so that a blank line in a compose file does not drop the API keys.
    """
    table = fields()
    values: dict[str, object] = {}
    sources = dict.fromkeys(table, "default")
    layers = (
        _file_layer(paths.config_file, table),
        _environment_layer(os.environ if environment is None else environment, table),
        _flag_layer(flags, table),
    )
    for layer in layers:
        for name, (value, source) in layer.items():
            values[name] = checked(table[name], value, source)
            sources[name] = source
    return Resolved(msgspec.structs.replace(Settings(), **values), sources)


def told(settings: Settings) -> dict[str, str]:
    """Every setting that is no secret, as text."""
    return {name: shown(field, getattr(settings, name)) for name, field in fields().items() if not field.secret}


Layer = dict[str, tuple[object, str]]  # setting name -> value, source


def _file_layer(path: Path, table: Mapping[str, Field]) -> Layer:
    try:
        text = read_small_text(path)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {why(error)}", hint="mend it or move it away") from error
    import tomllib

    try:
        entries = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # syntax, a number of thousands of digits, nesting without end
        raise ConfigError(
            f"{path} is not valid TOML: {error}", hint='write lines such as `host = "127.0.0.1"`'
        ) from error
    for name, value in entries.items():
        if name not in table:
            hint = "settings stand at the top level, without a [section]" if isinstance(value, dict) else None
            raise _unknown(name, str(path), list(table), hint)
    return {name: (value, str(path)) for name, value in entries.items()}


def _environment_layer(environment: Mapping[str, str], table: Mapping[str, Field]) -> Layer:
    by_variable = {field.variable: field for field in table.values()}
    layer: Layer = {}
    for variable in sorted(environment):
        if not variable.startswith(PREFIX) or variable in NOT_SETTINGS:
            continue
        if variable not in by_variable:
            raise _unknown(variable, "the environment", [*by_variable, *NOT_SETTINGS])
        if environment[variable].strip():
            field = by_variable[variable]
            layer[field.name] = (from_text(field, environment[variable], variable), variable)
    return layer


def _flag_layer(flags: Mapping[str, object], table: Mapping[str, Field]) -> Layer:
    layer: Layer = {}
    for name, value in flags.items():
        if name not in table:
            raise _unknown(name, "the command line", list(table))
        if value is not None:
            layer[name] = (value, "flag")
    return layer


def _unknown(name: str, where: str, known: list[str], hint: str | None = None) -> ConfigError:
    return ConfigError(
        f"unknown setting {name} in {where}",
        hint=hint or f"{meant(name, known)}mend or remove it; `edgellm config` lists all",
        param=name,
    )
