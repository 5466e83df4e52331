"""Embeddings of converted models on every engine: against transformers, and through the whole daemon."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from real_daemon import serving

from convert import folders, llama, tiny_models
from convert.corpus import TEXTS
from edgellm import plugins
from edgellm.contracts.embedding import EmbeddingPlugin, EmbeddingRunner
from edgellm.contracts.engine import ModelFile, Placement, Tokenizer
from edgellm.errors import LoadFailed
from edgellm.formats.gguf import read_model
from edgellm.library.convert.convert import plan_conversion
from edgellm.library.pull import pull
from edgellm.paths import default_paths
from edgellm.plugins import embedder_for

ROOM = Placement(context=64, capacity=512, max_sequences=8, batch_tokens=512, threads=1, threads_batch=1)
Vectors = npt.NDArray[np.float32]


@pytest.fixture(params=["llamacpp", "torch"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def converted(folder: Path) -> ModelFile:
    target = folder.parent / f"{folder.name}.gguf"
    with target.open("wb") as out:
        out.writelines(plan_conversion(folder).chunks())
    return read_model(target)


def opened(folder: Path, engine: str, room: Placement = ROOM) -> tuple[EmbeddingRunner, Tokenizer]:
    """The folder, converted and loaded."""
    model = converted(folder)
    plugin: EmbeddingPlugin = embedder_for(model, engine)
    runner = plugin.load_embedder(model, room, lambda _: None)
    return runner, plugin.tokenizer(model)


def framed(runner: EmbeddingRunner, tokenizer: Tokenizer, text: str) -> list[int]:
    return [*runner.info.before, *tokenizer.encode(text, special=False), *runner.info.after]


def cosines(ours: Vectors, theirs: Vectors) -> Vectors:
    lengths = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    found: Vectors = (ours * theirs).sum(axis=1) / lengths
    return found


def pooled(folder: Path, ids: Sequence[Sequence[int]], how: str) -> Vectors:
    """By transformers, one text at a time."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(folder, dtype="float32").eval()
    found = []
    with torch.no_grad():
        for text in ids:
            states = model(torch.tensor([list(text)])).last_hidden_state[0]
            found.append({"mean": states.mean(0), "cls": states[0], "last": states[-1]}[how].numpy())
    return np.stack(found)


def test_a_batch_gives_what_each_text_gives_alone(engine: str, tmp_path: Path) -> None:
    runner, tokenizer = opened(folders.bert(tmp_path / "bert"), engine)
    texts = [framed(runner, tokenizer, text)[:64] for text in TEXTS[:8]]
    together = runner.embed(texts)
    alone = np.concatenate([runner.embed([text]) for text in texts])
    assert together.shape == (8, 32)
    assert cosines(together, alone).min() > 0.9999
    different = together @ together.T / np.outer(*[np.linalg.norm(together, axis=1)] * 2)
    assert np.sort(different, axis=1)[:, -2].max() < 0.999  # the texts are told apart
    runner.close()


def test_texts_that_make_no_sense_are_refused(engine: str, tmp_path: Path) -> None:
    """llama.cpp would abort on them."""
    runner, tokenizer = opened(folders.bert(tmp_path / "bert"), engine)
    bad: tuple[list[list[int]], ...]
    bad = ([], [[]], [[1] * 65], [[1]] * 9, [[tokenizer.vocabulary_size]])
    for texts in bad:
        with pytest.raises(ValueError):
            runner.embed(texts)
    assert runner.embed([[1]]).shape == (1, 32)
    runner.close()


def test_a_text_model_is_no_embedder(engine: str, tmp_path: Path) -> None:
    model = converted(folders.llama(tmp_path / "llama"))
    plugin = plugins.engine(engine)
    assert isinstance(plugin, EmbeddingPlugin)
    assert "not made for embeddings" in (plugin.embeds(model) or "")
    with pytest.raises(LoadFailed, match="does not say how embeddings are pooled, or it is a model that ranks"):
        plugin.load_embedder(model, ROOM, lambda _: None)


def test_an_embedder_is_no_text_model(engine: str, tmp_path: Path) -> None:
    model = converted(folders.bert(tmp_path / "bert"))
    assert plugins.engine(engine).supports(model) == "this bert model makes embeddings, not text"


@pytest.mark.parametrize("said", [None, 0, 4])
def test_a_file_that_does_not_pool_or_that_ranks(engine: str, said: int | None, tmp_path: Path) -> None:
    conversion = plan_conversion(folders.bert(tmp_path / "bert"))
    del conversion.metadata["bert.pooling_type"]
    if said is not None:
        conversion.metadata["bert.pooling_type"] = said
    target = tmp_path / "bert.gguf"
    target.write_bytes(b"".join(conversion.chunks()))
    plugin = plugins.engine(engine)
    assert isinstance(plugin, EmbeddingPlugin)
    with pytest.raises(LoadFailed, match="does not say how embeddings are pooled, or it is a model that ranks"):
        plugin.load_embedder(read_model(target), ROOM, lambda _: None)


@pytest.mark.slow
def test_the_official_client_against_the_daemon(engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from openai import BadRequestError, OpenAI

    monkeypatch.setenv("EDGELLM_ENGINE", engine)
    for key, value in {"HOME": str(tmp_path / "home"), "PORT": "0", "THREADS": "1", "MEMORY_RESERVE": "0"}.items():
        monkeypatch.setenv(f"EDGELLM_{key}", value)
    paths = default_paths()
    for kind, make in (("bert", folders.bert), ("llama", folders.llama)):
        pull(str(make(tmp_path / kind)), paths=paths, report=lambda _: None)
    runner, tokenizer = opened(tmp_path / "bert", engine)
    texts = [text for text in TEXTS[:12] if len(framed(runner, tokenizer, text)) <= 64]
    expected = np.concatenate([runner.embed([framed(runner, tokenizer, text)]) for text in texts])
    runner.close()
    with (
        serving(paths) as served,
        OpenAI(base_url=f"{served.client.info.url}/v1", api_key="x", max_retries=0) as client,
    ):
        answer = client.embeddings.create(model="bert", input=texts)
        found = np.array([item.embedding for item in answer.data], np.float32)
        assert np.linalg.norm(found, axis=1) == pytest.approx(np.ones(len(texts)), abs=1e-5)
        assert cosines(found, expected).min() > 0.9999
        assert served.model.engine == plugins.title(engine)
        assert answer.usage.total_tokens == sum(len(tokenizer.encode(text, special=False)) + 2 for text in texts)
        ids = [2, *tokenizer.encode(texts[0], special=False), 3]
        by_ids = client.embeddings.create(model="bert", input=ids).data[0].embedding
        assert by_ids == pytest.approx(answer.data[0].embedding, abs=1e-4)
        with pytest.raises(BadRequestError, match="takes at most 64"):
            client.embeddings.create(model="bert", input="word " * 100)
        with pytest.raises(BadRequestError, match="makes no embeddings"):
            client.embeddings.create(model="llama", input="x")
        with pytest.raises(BadRequestError, match="makes embeddings, not text"):
            client.chat.completions.create(model="bert", messages=[{"role": "user", "content": "x"}])
        with pytest.raises(BadRequestError, match="is not one of"):
            client.embeddings.create(model="bert", input=[1, 10**6])


@pytest.mark.slow
@pytest.mark.parametrize("pooling", ["mean", "cls", "last"])
def test_tiny_bert_agrees_with_transformers(engine: str, pooling: str, tmp_path: Path) -> None:
    folder = folders.bert(tmp_path / "bert", pooling)
    runner, tokenizer = opened(folder, engine)
    ids = [framed(runner, tokenizer, text)[:64] for text in TEXTS]
    ours = np.concatenate([runner.embed([text]) for text in ids])
    assert cosines(ours, pooled(folder, ids, pooling)).min() > 0.999
    runner.close()


@pytest.mark.slow
def test_a_decoder_that_embeds(engine: str, tmp_path: Path) -> None:
    """As Qwen 3's embedding models: the last token, an end after every text."""
    model = tiny_models.build("Qwen3ForCausalLM", "Qwen3Config", {"head_dim": 32, "tie_word_embeddings": True})
    folder = tmp_path / "qwen"
    tiny_models.save(model, folder)
    steps = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in folders.STEPS]
    (folder / "modules.json").write_text(json.dumps(steps))
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode_lasttoken": true}')
    config = json.loads((folder / "tokenizer_config.json").read_text()) | {"add_eos_token": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    runner, tokenizer = opened(folder, engine)
    assert runner.info.after == (tokenizer.eos,)
    ids = [framed(runner, tokenizer, text)[:64] for text in TEXTS[:8]]
    assert cosines(runner.embed(ids), pooled(folder, ids, "last")).min() > 0.999
    runner.close()


@pytest.mark.slow
def test_all_minilm_agrees_with_its_safetensors(engine: str, minilm: Path) -> None:
    """The published model: tokens equal its own tokenizer's, vectors equal what transformers computes."""
    from tokenizers import Tokenizer as Original

    room = Placement(context=512, capacity=512, max_sequences=16, batch_tokens=512, threads=1, threads_batch=1)
    original: Any = Original.from_file(str(minilm / "tokenizer.json"))
    original.no_truncation()
    original.no_padding()
    runner, tokenizer = opened(minilm, engine, room)
    ids = [original.encode(text).ids for text in TEXTS]
    assert [framed(runner, tokenizer, text) for text in TEXTS] == ids
    ours = np.concatenate([runner.embed([text]) for text in ids])
    assert 1 - cosines(ours, pooled(minilm, ids, "mean")).min() < 1e-3
    assert cosines(ours, llama.embeddings(minilm.parent / "model.gguf", ids)).min() > 0.9999
    runner.close()
