"""Small tokenizers of every kind, trained with the `tokenizers` library, saved as models carry them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from convert.corpus import training_text
from edgellm.library.convert.tokenizers import pre

SPECIAL = ["<|bos|>", "<|eos|>", "<|im_end|>"]


def byte_level(kind: str, size: int, *, start: str | None = None) -> Any:
    """A byte-level BPE that cuts text in llama.cpp's way `kind`. `start`: a token put before every text."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    steps, ignore_merges, normaliser = next(key for key, name in pre._KNOWN.items() if name == kind)
    tokenizer = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    if normaliser == "NFC":
        tokenizer.normalizer = normalizers.NFC()
    made = [_step(step) for step in steps]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(made) if len(made) > 1 else made[0]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(training_text(), trainer)
    tokenizer.add_tokens([AddedToken("<tool>", normalized=False)])
    if start is not None:
        pair = (start, tokenizer.token_to_id(start))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{start} $A", pair=f"{start} $A $B", special_tokens=[pair]
        )
    return tokenizer


def _step(step: str) -> Any:
    from tokenizers import Regex, pre_tokenizers

    if step == "digits":
        return pre_tokenizers.Digits(individual_digits=True)
    if step.startswith("bytes"):
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=step == "bytes and words")
    return pre_tokenizers.Split(Regex(step), "isolated")


def save_tokenizer(tokenizer: Any, folder: Path, config: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def wordpiece(size: int) -> Any:
    """As BERT's, lower-casing."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=size, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(training_text(), trainer)
    pairs = [(text, tokenizer.token_to_id(text)) for text in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=pairs
    )
    return tokenizer


def trained(kind: str, size: int, folder: Path, **options: Any) -> Any:
    """SentencePiece's own, "bpe" or "unigram"; its file becomes tokenizer.model."""
    import sentencepiece

    folder.mkdir(parents=True, exist_ok=True)
    if kind == "unigram":
        options["hard_vocab_limit"] = False
    train: Any = sentencepiece.SentencePieceTrainer.train
    train(
        sentence_iterator=iter(training_text()),
        model_prefix=str(folder / "tokenizer"),
        model_type=kind,
        vocab_size=size,
        minloglevel=2,
        **options,
    )
    return sentencepiece.SentencePieceProcessor(model_file=str(folder / "tokenizer.model"))


def bpe_as_json(model: Any, *, prefix: bool) -> Any:
    """A SentencePiece BPE as tokenizer.json has it: every way to cut a piece in two is a merge, ranked by the piece."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

    pieces = [model.id_to_piece(number) for number in range(model.get_piece_size())]
    ids = {piece: number for number, piece in enumerate(pieces)}
    long = [n for n in range(len(pieces)) if len(pieces[n]) > 1 and not (model.is_control(n) or model.is_unknown(n))]
    made = sorted((n for n in long if not model.is_byte(n)), key=lambda n: -model.get_score(n))
    merges = [
        (pieces[number][:cut], pieces[number][cut:])
        for number in made
        for cut in range(1, len(pieces[number]))
        if pieces[number][:cut] in ids and pieces[number][cut:] in ids
    ]
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    steps = [normalizers.Replace(" ", "\u2581")]
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), *steps] if prefix else steps)
    tokenizer.decoder = decoders.ByteFallback()
    for text in ("<unk>", "<s>", "</s>"):
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)])
    return tokenizer


def unigram_as_json(model: Any, charsmap: bytes) -> Any:
    """A SentencePiece Unigram as tokenizer.json has it."""
    from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors

    pieces = [(model.id_to_piece(n), model.get_score(n)) for n in range(model.get_piece_size())]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=model.unk_id(), byte_fallback=False))
    tokenizer.normalizer = normalizers.Precompiled(charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(prepend_scheme="always")]
    )
    for text in ("<unk>", "<s>", "</s>"):
        tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False)])
    pairs = [("<s>", model.bos_id()), ("</s>", model.eos_id())]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=pairs
    )
    return tokenizer
