"""`edgellm run`: one question and its streamed answer, or a conversation where nothing is asked."""

from __future__ import annotations

import contextlib
import shlex
import sys
from pathlib import Path

import msgspec

from edgellm.cli.answer import Turn, ask, engine_of, footer
from edgellm.cli.output import Output
from edgellm.cli.parse import duration
from edgellm.cli.terminal import is_terminal
from edgellm.client import DaemonClient
from edgellm.config import Settings, load_settings, told
from edgellm.contracts.events import figures
from edgellm.contracts.request import GenerateRequest, Message, Messages, Prompt, Sampling, Text
from edgellm.contracts.status import LoadedModel
from edgellm.errors import InvalidName, InvalidRequest, NotFound
from edgellm.inert import label
from edgellm.library.kinds import require_text
from edgellm.library.latest import remember
from edgellm.library.manifest import Manifest
from edgellm.library.store import Store
from edgellm.mentions import there
from edgellm.paths import Paths, default_paths, is_file
from edgellm.platform import make_private_folder, unseen_typing, write_private
from edgellm.presets import preset
from edgellm.setting import option
from edgellm.small_files import read_small
from edgellm.units import number
from edgellm.wishes import SETTINGS

PROMPT_LIMIT = 32 << 20  # bytes of piped input: far more than any context, far less than a mistake can pipe
LEAVES_S = 20.0  # for an idle daemon to end


class Wanted(msgspec.Struct, frozen=True):
    """The options of `edgellm run`, as given; None where not."""

    model: str
    system: str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    context: int | None = None
    keep_alive: str | None = None
    preset: str | None = None
    plain: bool = False
    engine: str | None = None


def run_model(wanted: Wanted, words: list[str], *, verbose: bool, json: bool, quiet: bool) -> None:
    """Ask, or hold a conversation when there is no prompt and a person at the keyboard."""
    output = Output(json=json, quiet=quiet)
    paths = default_paths()
    settings = load_settings(paths, {"context": wanted.context, "engine": wanted.engine}).settings
    manifest = _required(wanted.model, paths)
    require_text(manifest)
    if wanted.engine is not None:
        _require_engine(wanted.engine)
    if wanted.context:
        _require_context(wanted.context, manifest)
    if wanted.system and not manifest.summary.has_chat_template:
        raise InvalidRequest(
            f"{manifest.full_name} has no chat template, so --system has no place",
            hint="it continues text: write the instructions into the prompt",
            param="system",
        )
    base = _request(wanted, manifest)
    text = prompt_text(words)
    if output.interactive:
        _tell_of_files(words, output)
    if text is None and json:
        raise InvalidRequest("--json needs a prompt", hint="give it as an argument or pipe it in", param="prompt")
    with contextlib.ExitStack() as stack:
        # Before anything is shown, so that what is typed while a model loads is there for the first prompt.
        stack.enter_context(unseen_typing())
        output.status(f"starting {manifest.full_name} …")
        client = stack.enter_context(_connected(paths, settings, manifest, wanted))
        _tell_other_settings(client, settings, wanted, output, paths)
        if manifest.summary.has_chat_template:  # what continues text is nobody to talk to
            remember(paths, str(manifest.full_name))
        if text is None:
            _converse(client, wanted, manifest, base, output, paths, settings)
            return
        turn = Turn()
        request = msgspec.structs.replace(base, prompt=_prompt(manifest, wanted.system, text))
        ask(client, request, output, turn, markdown=_markdown(wanted, manifest))
        if not json and (verbose or output.interactive):
            output.footer(footer(turn, engine_of(client, str(manifest.full_name))))
    if json:
        output.document(_document(turn, manifest))


def _converse(
    client: DaemonClient,
    wanted: Wanted,
    manifest: Manifest,
    base: GenerateRequest,
    output: Output,
    paths: Paths,
    settings: Settings,
) -> None:
    # Imported here: reading keys takes a quarter of a second to load, and only this needs it.
    from edgellm.cli.talk.conversation import Conversation
    from edgellm.cli.talk.repl import converse

    conversation = Conversation(manifest, base, wanted.system)
    name = str(manifest.full_name)
    converse(
        client,
        conversation,
        output,
        connect=lambda: DaemonClient.connect_or_start(paths, settings, preload=name),
        history=paths.data / "history",
        markdown=_markdown(wanted, manifest),
    )


def _tell_of_files(words: list[str], output: Output) -> None:
    """A prompt in the arguments is sent as it is, for scripts; who expects what a conversation does is told."""
    for name in there(" ".join(words)):
        shown = label(name, 60)
        output.note(f"@{shown} is sent as these letters; `< {shown}` sends what is in it, and so does a conversation")


def _markdown(wanted: Wanted, manifest: Manifest) -> bool:
    """Whether answers are rendered: what a base model continues may be anything."""
    return manifest.summary.has_chat_template and not wanted.plain


def _required(name: str, paths: Paths) -> Manifest:
    """The model of that name; a file in its place is told how it becomes a model. Raises InvalidName, NotFound."""
    try:
        return Store(paths).require(name)
    except (InvalidName, NotFound) as error:
        if is_file(name):
            hint = f"a file is imported first: `edgellm pull {shlex.quote(str(Path(name).absolute()))} --name NAME`"
            raise type(error)(error.message, hint=hint, param="model") from error
        raise


def prompt_text(words: list[str]) -> str | None:
    """What is asked: the arguments, then piped input; None when a person sits there and has asked nothing."""
    piped = _piped()
    if piped is None and not words:
        return None
    text = "\n\n".join(part for part in (" ".join(words), piped or "") if part.strip())
    if not text.strip():
        raise InvalidRequest(
            "the prompt is empty",
            hint='ask something: edgellm run NAME "Why is the sky blue?"',
            param="prompt",
        )
    return text


def _piped() -> str | None:
    """What was piped in, without the line break at its end; None at a terminal. Raises InvalidRequest for no text."""
    if is_terminal(sys.stdin):
        return None
    buffer = getattr(sys.stdin, "buffer", None)
    if buffer is None:  # no stdin at all
        return ""
    raw: bytes = buffer.read(PROMPT_LIMIT + 1)
    if len(raw) > PROMPT_LIMIT:
        raise InvalidRequest(f"more than {PROMPT_LIMIT >> 20} MiB were piped in", hint="no model takes so much")
    # Windows shells pipe UTF-16, with a mark at its beginning.
    encoding = "utf-16" if raw[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return raw.decode(encoding).rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"what was piped in is not text: byte {number(error.start)} is no UTF-8",
            hint="pipe in a text file",
        ) from error


def _prompt(manifest: Manifest, system: str | None, text: str) -> Prompt:
    if not manifest.summary.has_chat_template:
        return Text(text)
    first = (Message("system", system),) if system else ()
    return Messages((*first, Message("user", text)))


def _request(wanted: Wanted, manifest: Manifest) -> GenerateRequest:
    preset(wanted.preset)  # refused here, where it is unknown
    _require_allowed(wanted)
    return GenerateRequest(
        id="",  # the daemon gives one
        model=str(manifest.full_name),
        prompt=Text(""),
        sampling=Sampling(wanted.temperature, wanted.top_p, wanted.top_k, wanted.seed),
        preset=wanted.preset,
        max_tokens=wanted.max_tokens,
        stop=wanted.stop,
        keep_alive_s=duration(wanted.keep_alive),
    )


def _require_allowed(wanted: Wanted) -> None:
    """Raises InvalidRequest, naming the option, before a daemon is started or a model loaded for nothing."""
    for name in ("temperature", "top_p", "top_k", "max_tokens"):
        value, setting = getattr(wanted, name), SETTINGS[name]
        try:
            msgspec.convert(value, setting.hint | None)
        except msgspec.ValidationError as error:
            raise InvalidRequest(
                f"{option(name)} {str(value).removesuffix('.0')} is not allowed",
                hint=f"{option(name)} takes {setting.takes}",
                param=name,
            ) from error


def _connected(paths: Paths, settings: Settings, manifest: Manifest, wanted: Wanted) -> DaemonClient:
    """The daemon, started with these settings if none runs; one that runs has its own, which is no silent matter.

    Where they are not what was asked for, an idle one in the background makes way, as it does for `serve`.
    """
    name = str(manifest.full_name)
    client = DaemonClient.find(paths)
    if client is None:
        return DaemonClient.connect_or_start(paths, settings, preload=name)
    try:
        _require_as_asked(client, name, wanted)
    except InvalidRequest:
        with client:
            if not client.make_way(LEAVES_S):
                raise
        return DaemonClient.connect_or_start(paths, settings, preload=name)
    return client


def _require_as_asked(client: DaemonClient, name: str, wanted: Wanted) -> None:
    """What was asked for is how the running daemon has loaded the model. Raises InvalidRequest."""
    if not wanted.context and wanted.engine is None:
        return
    loaded = next((model for model in client.ps() if model.name == name), None)
    if wanted.context and (loaded is None or loaded.context < wanted.context):
        has = f"{name} is loaded with {number(loaded.context)}" if loaded else "its own settings decide"
        raise _too_late(f"--context {number(wanted.context)}", has, "context")
    if wanted.engine is not None and not _runs_on(loaded, wanted.engine):
        has = f"{name} runs on {loaded.engine}" if loaded else "its own settings decide"
        raise _too_late(f"--engine {wanted.engine}", has, "engine")


def _tell_other_settings(
    client: DaemonClient, settings: Settings, wanted: Wanted, output: Output, paths: Paths
) -> None:
    """A daemon in the background keeps the settings it was started with, by whichever command: told once."""
    from edgellm.plugins import ANY

    asked = {"context": wanted.context, "engine": None if wanted.engine == ANY else wanted.engine}  # seen to already
    now = {name: value for name, value in told(settings).items() if not asked.get(name)}
    then = client.info.settings
    other = [f"{name} = {then[name]} (now {now[name]})" for name in now if then.get(name, now[name]) != now[name]]
    text = f"the daemon still has {', '.join(other)}; `edgellm stop --all` ends it"
    seen = not (output.quiet or output.json)
    if other and seen and _is_news(f"{client.info.pid} {text}", paths):
        output.note(text)


def _is_news(text: str, paths: Paths) -> bool:
    """Whether it was not the last that was told. `ps` shows at any time what holds; where none can tell, it is news."""
    with contextlib.suppress(OSError):
        make_private_folder(paths.runtime)
        file = paths.told_settings
        if file.exists() and read_small(file) == text.encode():
            return False
        write_private(file, text.encode())
    return True


def _require_engine(name: str) -> None:
    """Raises EngineUnavailable for one that cannot run here, before a daemon that works makes way for it."""
    from edgellm import plugins  # not above: what few ask for need not cost everyone a hundredth of a second

    if name != plugins.ANY:
        plugins.require(name)


def _require_context(asked: int, manifest: Manifest) -> None:
    """Raises InvalidRequest for one beyond what the model was trained for."""
    from edgellm.placement.plan import require_trained

    require_trained(asked, manifest.summary.context)


def _runs_on(loaded: LoadedModel | None, engine: str) -> bool:
    from edgellm import plugins

    return engine == plugins.ANY or (loaded is not None and loaded.engine == plugins.title(engine))


def _too_late(option: str, has: str, param: str) -> InvalidRequest:
    return InvalidRequest(
        f"{option} comes too late: a daemon is running already, and {has}",
        hint="`edgellm stop --all` ends it; then try again",
        param=param,
    )


def _document(turn: Turn, manifest: Manifest) -> dict[str, object]:
    return {
        "model": str(manifest.full_name),
        "text": turn.text,
        **({"reasoning": turn.thoughts} if turn.thoughts else {}),
        "finish_reason": turn.reason,
        "usage": turn.usage,
        "timings": figures(turn.usage, turn.timings) if turn.usage and turn.timings else None,
    }
