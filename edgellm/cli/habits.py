"""Words that people bring along from other programs that run models, and what says the same here.

Only what is not near in spelling, or near to something else, needs a place here: `ls` is nearer to logs than to list.
"""

from __future__ import annotations

from collections.abc import Iterable

from edgellm.config import fields
from edgellm.setting import option
from edgellm.spelling import meant

_COMMANDS = {
    "ls": "list",
    "models": "list",
    "search": "list --catalogue",
    "remove": "rm",
    "delete": "rm",
    "del": "rm",
    "uninstall": "rm",
    "download": "pull",
    "get": "pull",
    "install": "pull",
    "import": "pull ./model.gguf",
    "create": "pull ./model.gguf",
    "start": "serve",
    "server": "serve",
    "up": "serve",
    "kill": "stop",
    "unload": "stop",
    "down": "stop --all",
    "status": "ps",
    "info": "show",
    "inspect": "show",
    "ask": "run",
    "generate": "run",
    "embed": "serve, and then POST to /v1/embeddings",
    "settings": "config",
    "set": "config",
}
_OPTIONS = {
    "-c": "--context",
    "--ctx-size": "--context",
    "--num-ctx": "--context",
    "--num_ctx": "--context",
    "--max-model-len": "--context",
    "-t": "--threads",
    "--n-parallel": "--parallel",
    "--max-num-seqs": "--parallel",
    "--temp": "--temperature",
    "-n": "--max-tokens",
    "--n-predict": "--max-tokens",
    "--num-predict": "--max-tokens",
    "--keepalive": "--keep-alive",
    "--model-draft": "--draft",
    "--cache-type-k": "--kv",
    "--n-gpu-layers": "--gpu-layers",
    "--format": "--json",
}
_BARE = {"-m": "the model's name", "--model": "the model's name", "-p": "the prompt", "--prompt": "the prompt"}
_NO_PLACE = {
    "serve": "leave it out: what is served is the model that a request names",
    "config": "settings are changed in the file that `edgellm config --path` names, or by variables: EDGELLM_PORT=8080",
    "pull": "pull one model at a time",
}


def command(word: str, known: Iterable[str]) -> str:
    """A hint's first question, for a word that is no command; empty where nothing is meant that is known here."""
    return f"did you mean {_COMMANDS[word]}? " if word in _COMMANDS else meant(word, known)


def option_of(name: str, command_name: str, known: Iterable[str]) -> str:
    """The same for what is no option of that command, whose own are `known`."""
    known = list(known)
    same = _OPTIONS.get(name, name)
    if same in known:
        return f"did you mean {same}? "
    if name in _BARE and command_name == "run":
        return f'{_BARE[name]} stands by itself: `edgellm run NAME "PROMPT"`. '
    setting = next((field for field in fields().values() if option(field.name) == same), None)
    if setting is not None:
        return f"{setting.variable} sets it for the daemon. "
    return meant(name, known)


def no_place(command_name: str) -> str | None:
    """The way out for a word too many, where that command is often given one."""
    return _NO_PLACE.get(command_name)
