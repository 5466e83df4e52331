"""The engine in docs/plugins.md works as printed, and discovery says what it cannot use and why."""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, distributions
from pathlib import Path
from typing import Any

import pytest
from gguf_files import Key, build, key

from edgellm import plugins
from edgellm.contracts.engine import Available, Placement, Unavailable
from edgellm.contracts.events import Finished, Started, TextDelta
from edgellm.contracts.request import GenerateRequest, Message, Messages
from edgellm.engine.core import EngineCore
from edgellm.engine.prompt import PromptEncoder
from edgellm.errors import EngineUnavailable
from edgellm.formats.gguf import read_model

DOCS = Path(__file__).parent.parent.parent / "docs" / "plugins.md"
ROOM = Placement(context=256, capacity=512, max_sequences=4, batch_tokens=64, threads=1, threads_batch=1)


def printed() -> Any:
    """The plugin object of the page's Python block."""
    block = re.search(r"```python\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    assert block
    namespace: dict[str, Any] = {}
    exec(block.group(1), namespace)
    return namespace["plugin"]


def parrot_file(folder: Path, architecture: str = "parrot") -> Path:
    keys: list[Key] = [key("general.architecture", 8, architecture)]
    path = folder / f"{architecture}.gguf"
    path.write_bytes(build(keys, []))
    return path


def test_the_ten_line_engine_answers(tmp_path: Path) -> None:
    plugin = printed()
    model = read_model(parrot_file(tmp_path))
    assert plugin.supports(model) is None
    tokenizer = plugin.tokenizer(model)
    core = EngineCore("parrot", plugin.load(model, ROOM, lambda done: None), tokenizer)
    core.warm_up()
    request = GenerateRequest(id="1", model="parrot", prompt=Messages((Message("user", "Pretty 鸚鵡!"),)))
    events = core.add(request, PromptEncoder(tokenizer).encode(request.prompt))
    while not core.idle:
        events += core.step()
    assert isinstance(events[0][1], Started)
    assert isinstance(events[-1][1], Finished)
    assert "".join(e.text for _, e in events if isinstance(e, TextDelta)) == "Pretty 鸚鵡!\n"


def test_it_refuses_other_models(tmp_path: Path) -> None:
    assert printed().supports(read_model(parrot_file(tmp_path, "llama"))) == "it only runs parrots"


def install(monkeypatch: pytest.MonkeyPatch, **engines: str) -> None:
    points = [EntryPoint(name, value, plugins.ENGINES) for name, value in engines.items()]
    monkeypatch.setattr(plugins, "entry_points", lambda group: [p for p in points if p.group == group])


def test_what_cannot_be_imported_is_unavailable_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, broken="no_such_module_anywhere:plugin")
    state = plugins.probe("broken")
    assert isinstance(state, Unavailable)
    assert "no_such_module_anywhere" in state.reason
    assert "reinstall" in state.hint


def test_an_unknown_name_lists_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, fake="fake_runner:plugin")
    with pytest.raises(EngineUnavailable, match="no engine named llama") as caught:
        plugins.engine("llama")
    assert "fake" in (caught.value.hint or "")


def test_an_engine_is_found_for_a_model_or_every_reason_is_given(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = read_model(parrot_file(tmp_path))
    monkeypatch.setattr(plugins, "_load", lambda entry: printed())
    install(monkeypatch, parrot="unused:plugin")
    assert plugins.engine_for(model).name == "parrot"
    assert isinstance(plugins.probe("parrot"), Available)
    with pytest.raises(EngineUnavailable, match="parrot: it only runs parrots"):
        plugins.engine_for(read_model(parrot_file(tmp_path, "llama")))


class Named:
    """As much of an engine as choosing one needs. Being probed is an error: that may import anything."""

    def __init__(self, name: str, refusal: str | None = None, requires: tuple[str, ...] = ()) -> None:
        self.name, self.title, self.requires = name, name.upper(), requires
        self._refusal = refusal

    def supports(self, _model: object) -> str | None:
        return self._refusal

    def probe(self) -> Available:
        raise AssertionError("probed")


CHOICES: dict[str, tuple[list[Named], str, str]] = {
    "llama.cpp where it can": ([Named("aardvark"), Named("llamacpp"), Named("torch")], "auto", "llamacpp"),
    "another where it cannot": ([Named("llamacpp", "no"), Named("torch")], "auto", "torch"),
    "another where it is not installed": (
        [Named("llamacpp", requires=("no_such_module",)), Named("torch", requires=("json",))], "auto", "torch",
    ),
    "another where a part of a package is not there": (
        [Named("llamacpp", requires=("no_such_module.part",)), Named("torch")], "auto", "torch",
    ),
    "the one asked for": ([Named("llamacpp"), Named("torch")], "torch", "torch"),
    "one that is not installed, to say so": ([Named("torch", requires=("no_such_module",))], "auto", "torch"),
}  # fmt: skip


@pytest.mark.parametrize("name", CHOICES)
def test_which_of_several_engines_runs_a_model(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    engines, asked, expected = CHOICES[name]
    by_name = {engine.name: engine for engine in engines}
    monkeypatch.setattr(plugins, "_load", lambda entry: by_name[entry.name])
    install(monkeypatch, **dict.fromkeys(by_name, "unused:plugin"))
    assert plugins.engine_for(read_model(parrot_file(tmp_path)), asked).name == expected


class Embedding(Named):
    """The same of an engine that makes embeddings, and nothing else."""

    kv_types = ()
    cost_model = tokenizer = load = embedding_cost = load_embedder = Named.probe

    def embeds(self, _model: object) -> str | None:
        return self._refusal

    def supports(self, _model: object) -> str | None:
        raise AssertionError("asked for text")


@pytest.mark.parametrize("name", CHOICES)
def test_which_of_several_engines_makes_embeddings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    engines, asked, expected = CHOICES[name]
    by_name: dict[str, Named] = {e.name: Embedding(e.name, e._refusal, e.requires) for e in engines}
    by_name["aaa"] = Named("aaa")
    monkeypatch.setattr(plugins, "_load", lambda entry: by_name[entry.name])
    install(monkeypatch, **dict.fromkeys(by_name, "unused:plugin"))
    model = read_model(parrot_file(tmp_path))
    assert plugins.embedder_for(model, asked).name == expected
    with pytest.raises(EngineUnavailable, match="AAA cannot make embeddings with this model: it makes no embeddings"):
        plugins.embedder_for(model, "aaa")
    install(monkeypatch, aaa="unused:plugin")
    with pytest.raises(EngineUnavailable, match=r"no engine can make embeddings with this model \(AAA: it makes no"):
        plugins.embedder_for(model)


def test_an_engine_that_was_asked_for_and_cannot_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plugins, "_load", lambda entry: Named("torch", "it has no such layers"))
    install(monkeypatch, torch="unused:plugin")
    model = read_model(parrot_file(tmp_path))
    with pytest.raises(EngineUnavailable, match="TORCH cannot run this model: it has no such layers"):
        plugins.engine_for(model, "torch")
    with pytest.raises(EngineUnavailable, match="no engine named pytorch"):
        plugins.engine_for(model, "pytorch")


def test_an_engine_without_a_version_has_its_distributions(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plugins, "_load", lambda entry: printed())
    install(monkeypatch, parrot="unused:plugin")
    assert plugins.probe("parrot") == Available("of unknown version")
    folder = tmp_path / "edgellm_parrot-0.3.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: edgellm-parrot\nVersion: 0.3\n")
    (folder / "entry_points.txt").write_text("[edgellm.engines]\nparrot = unused:plugin\n")
    found = [entry for dist in distributions(path=[str(tmp_path)]) for entry in dist.entry_points]
    monkeypatch.setattr(plugins, "entry_points", lambda group: found)
    assert plugins.probe("parrot") == Available("edgellm-parrot 0.3")


def test_an_engine_that_fails_when_asked_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing:
        def probe(self) -> Available:
            raise OSError("no such device")

    monkeypatch.setattr(plugins, "_load", lambda entry: Failing())
    install(monkeypatch, odd="unused:plugin")
    state = plugins.probe("odd")
    assert isinstance(state, Unavailable)
    assert "OSError: no such device" in state.reason


def test_an_engine_whose_libraries_are_not_here_is_refused_before_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare(Named):
        def probe(self) -> Unavailable:  # type: ignore[override]
            return Unavailable("steam is not installed", "fetch coal")

    by_name: dict[str, Named] = {"bare": Bare("bare", requires=("no_such_module",)), "whole": Named("whole")}
    monkeypatch.setattr(plugins, "_load", lambda entry: by_name[entry.name])
    install(monkeypatch, **dict.fromkeys(by_name, "unused:plugin"))
    plugins.require("whole")
    with pytest.raises(EngineUnavailable, match="BARE is not available: steam is not installed") as caught:
        plugins.require("bare")
    assert caught.value.hint == "fetch coal"
    with pytest.raises(EngineUnavailable, match="no engine named other"):
        plugins.require("other")


def test_what_people_call_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugins.title("llamacpp") == "llama.cpp"
    assert plugins.title("no_such_engine") == "no_such_engine"
    monkeypatch.setattr(plugins, "_load", lambda entry: printed())
    install(monkeypatch, parrot="unused:plugin")
    assert plugins.title("parrot") == "parrot"
