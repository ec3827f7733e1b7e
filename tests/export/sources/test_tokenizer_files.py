"""Test tokenizers whose files contradict each other, as those of published models do."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from tokenizers import Tokenizer, normalizers, pre_tokenizers, processors

from support.checkpoints import copy_modules_to, save_checkpoint, write_json, write_modules
from support.cli import ok
from support.families import MAX_LENGTH
from support.vocabularies import wordpiece
from whiten import Encoder
from whiten_export.sources.network import load_tokenizer
from whiten_export.sources.onnx_encoder import file_tokenizer
from whiten_export.sources.resolve import resolve
from whiten_export.sources.tokenizer import SourceTokenizer, describe_tokenizer

E5_MISTRAL = {
    "add_eos_token": True,
    "bos_token": "<s>",
    "eos_token": "</s>",
    "legacy": True,
    "model_max_length": MAX_LENGTH,
    "pad_token": "</s>",
    "tokenizer_class": "LlamaTokenizer",
    "unk_token": "<unk>",
}
"""The tokenizer_config.json of intfloat/e5-mistral-7b-instruct; its tokenizer.json adds `<s>` alone."""

ADDED_TOKEN = {"__type": "AddedToken", "content": "</s>", "special": True}


def described(folder: Path) -> SourceTokenizer:
    checkpoint = resolve(str(folder))
    return describe_tokenizer(checkpoint, load_tokenizer(checkpoint, trust_remote_code=False))


def with_template(folder: Path, template: str, **settings: object) -> Path:
    """Write a tokenizer.json that adds the tokens of a template, and a tokenizer_config.json."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, add_bos_token=True, add_eos_token=False)
    backend = tokenizer.backend_tokenizer
    added = [token for token in template.split() if token != "$A"]
    backend.post_processor = processors.TemplateProcessing(
        single=template, special_tokens=[(token, backend.token_to_id(token)) for token in added]
    )
    backend.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json", E5_MISTRAL | settings)
    return folder


@pytest.fixture
def mistral(tmp_path: Path) -> Path:
    return save_checkpoint("mistral", tmp_path / "mistral", num_hidden_layers=1)


@pytest.mark.parametrize(
    ("template", "settings", "ends", "note"),
    [
        ("<s> $A", {}, ("<s>", "</s>"), "add_eos_token"),
        ("$A", {"add_bos_token": True}, ("<s>", "</s>"), "add_bos_token and add_eos_token"),
        ("$A", {"tokenizer_class": "GemmaTokenizerFast"}, ("<s>", "</s>"), "add_bos_token and add_eos_token"),
        ("<s> $A", {"add_bos_token": False}, (None, "</s>"), "add_bos_token"),
        ("<s> $A", {"add_bos_token": False, "add_eos_token": False}, (None, None), "left out"),
        ("<s> $A", {"eos_token": ADDED_TOKEN}, ("<s>", "</s>"), "added"),
        ("<s> $A </s>", {}, ("<s>", "</s>"), None),
        ("<s> $A", {"tokenizer_class": "PreTrainedTokenizerFast"}, ("<s>", None), "left out"),
    ],
)
def test_tokens_that_the_config_asks_for(
    mistral: Path, template: str, settings: dict[str, Any], ends: tuple[str | None, str | None], note: str | None
) -> None:
    tokenizer = described(with_template(mistral, template, **settings))
    assert [note is not None and note in line for line in tokenizer.notes] == [True] * (note is not None)
    backend = Tokenizer.from_str(tokenizer.json)
    words = backend.encode("the cat", add_special_tokens=False).ids
    first, last = ([] if token is None else [backend.token_to_id(token)] for token in ends)
    assert backend.encode("the cat").ids == [*first, *words, *last]
    long = backend.encode("the cat " * MAX_LENGTH, add_special_tokens=False).ids
    room = MAX_LENGTH - len(first) - len(last)
    texts = ["the cat", "the cat " * MAX_LENGTH]
    assert tokenizer.own_ids(texts, MAX_LENGTH) == [[*first, *words, *last], [*first, *long[:room], *last]]


def test_tokens_of_a_file_with_padding_and_truncation(mistral: Path) -> None:
    with_template(mistral, "<s> $A")
    backend = Tokenizer.from_file(str(mistral / "tokenizer.json"))
    backend.enable_padding(length=9, pad_token="</s>", pad_id=2)
    backend.enable_truncation(9)
    backend.save(str(mistral / "tokenizer.json"))
    assert described(mistral).notes
    checkpoint = resolve(str(mistral))
    tokenizer = file_tokenizer(checkpoint, json.loads((mistral / "tokenizer_config.json").read_text()))
    assert tokenizer.notes
    own = tokenizer.own_ids(["the cat"], 20)[0]
    assert (own[0], own[-1], own.count(2)) == (1, 2, 1)


OWN_TOKENIZER = """
from tokenizers import processors
from transformers import PreTrainedTokenizerFast
class OwnTokenizer(PreTrainedTokenizerFast):
    def __init__(self, *arguments, {ends}, **options):
        super().__init__(*arguments, **options)
        self._ends = [token for token in {used} if token]
        self._tokenizer.post_processor = processors.TemplateProcessing(
            single=" ".join(["{first}$A", *self._ends]),
            special_tokens=[(t, self._tokenizer.token_to_id(t)) for t in ("<s>", "</s>")])
"""


def with_own_code(folder: Path, *, ends: str, used: str = "(add_eos_token and '</s>',)", first: str = "") -> Path:
    """Write code of a tokenizer as that of gte-Qwen2 and stella_en_1.5B_v5, whose tokens are those of a setting."""
    (folder / "own.py").write_text(OWN_TOKENIZER.format(ends=ends, used=used, first=first))
    path = folder / "tokenizer_config.json"
    auto_map = {"AutoTokenizer": [None, "own.OwnTokenizer"]}
    write_json(path, json.loads(path.read_text("utf-8")) | {"tokenizer_class": "OwnTokenizer", "auto_map": auto_map})
    return folder


@pytest.mark.parametrize(
    ("settings", "code", "wanted"),
    [
        ({"add_eos_token": True}, {"ends": "add_eos_token=False"}, (None, "</s>")),
        ({"add_eos_token": False}, {"ends": "add_eos_token=True"}, (None, None)),
        ({"add_eos_token": ...}, {"ends": "add_eos_token=True"}, (None, "</s>")),
        ({"add_eos_token": True}, {"ends": "add_eos_token=False", "first": "<s> "}, ("<s>", "</s>")),
        ({"add_eos_token": True}, {"ends": "other=None", "used": "()"}, (None, None)),
    ],
)
def test_own_code_gets_the_setting_that_it_takes(
    mistral: Path,
    settings: dict[str, Any],
    code: dict[str, str],
    wanted: tuple[str | None, str | None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As with transformers 4; 5 withholds it where there is a tokenizer.json."""
    copy_modules_to(tmp_path / "modules", monkeypatch)
    folder = with_own_code(with_template(mistral, "$A"), **code)
    path = folder / "tokenizer_config.json"
    changed = json.loads(path.read_text("utf-8")) | settings
    write_json(path, {name: value for name, value in changed.items() if value is not ...})
    checkpoint = resolve(str(folder))
    tokenizer = describe_tokenizer(checkpoint, load_tokenizer(checkpoint, trust_remote_code=True))
    backend = Tokenizer.from_str(tokenizer.json)
    words = backend.encode("the cat", add_special_tokens=False).ids
    first, last = ([] if token is None else [backend.token_to_id(token)] for token in wanted)
    assert tokenizer.own_ids(["the cat"], MAX_LENGTH) == [backend.encode("the cat").ids] == [[*first, *words, *last]]


@pytest.mark.slow
def test_a_model_of_the_last_token_pools_the_one_that_its_config_adds(mistral: Path, tmp_path: Path) -> None:
    with_template(mistral, "<s> $A")
    write_modules(mistral, "Transformer", "Pooling", "Normalize")
    write_json(mistral / "1_Pooling" / "config.json", {"pooling_mode": "lasttoken", "word_embedding_dimension": 32})
    write_json(mistral / "sentence_bert_config.json", {"max_seq_length": MAX_LENGTH})
    ok("export", mistral, "--out", tmp_path / "bundle")
    backend = Tokenizer.from_file(str(mistral / "tokenizer.json"))
    network = transformers.AutoModel.from_pretrained(mistral, dtype=torch.float32).eval()
    texts = ["the cat", "Wind and rain."]
    want = []
    for text in texts:
        ids = [*backend.encode(text).ids, backend.token_to_id("</s>")]
        with torch.no_grad():
            want.append(network(input_ids=torch.tensor([ids])).last_hidden_state[0, -1].numpy())
    with Encoder(tmp_path / "bundle") as encoder:
        vectors = encoder.encode(texts)
    np.testing.assert_allclose(vectors, want / np.linalg.norm(want, axis=1, keepdims=True), atol=1e-5)


@pytest.fixture
def with_json(checkpoint: Callable[[str], Path], tmp_path: Path) -> Callable[..., SourceTokenizer]:
    def write(family: str, change: Callable[[Tokenizer], None], **settings: object) -> SourceTokenizer:
        folder = save_checkpoint(family, tmp_path / family)
        backend = transformers.AutoTokenizer.from_pretrained(folder).backend_tokenizer
        change(backend)
        backend.save(str(folder / "tokenizer.json"))
        path = folder / "tokenizer_config.json"
        write_json(path, json.loads(path.read_text()) | settings)
        return described(folder)

    return write


def split_digits(backend: Tokenizer) -> None:
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(True), backend.pre_tokenizer])


def keep_case(backend: Tokenizer) -> None:
    backend.normalizer = normalizers.BertNormalizer(lowercase=False)


def strip_ends(backend: Tokenizer) -> None:
    backend.normalizer = normalizers.Sequence([normalizers.Strip(), backend.normalizer])


def change_nothing(backend: Tokenizer) -> None:
    pass


@pytest.mark.parametrize(
    ("family", "change", "settings", "name"),
    [
        ("roberta", split_digits, {"tokenizer_class": "RobertaTokenizer"}, "RobertaTokenizer"),
        ("bert", keep_case, {"tokenizer_class": "BertTokenizer"}, "BertTokenizer"),
        ("xlm-roberta", split_digits, {"tokenizer_class": "XLMRobertaTokenizer"}, "XLMRobertaTokenizer"),
        ("gpt2", split_digits, {"tokenizer_class": "GPT2TokenizerFast"}, "GPT2Tokenizer"),
        ("roberta", split_digits, {"tokenizer_class": "PreTrainedTokenizerFast"}, None),
        ("xlm-roberta", strip_ends, {"tokenizer_class": "XLMRobertaTokenizer"}, None),
        ("bert", change_nothing, {"tokenizer_class": "BertTokenizer"}, None),
        ("xlm-roberta", change_nothing, {}, None),
    ],
)
def test_a_class_that_takes_little_of_tokenizer_json(
    with_json: Callable[..., SourceTokenizer],
    family: str,
    change: Callable[[Tokenizer], None],
    settings: dict[str, object],
    name: str | None,
) -> None:
    notes = with_json(family, change, **settings).notes
    if name is None:
        assert notes == ()
    else:
        (note,) = notes
        assert name in note


@pytest.mark.parametrize("kind", ["fewer", "moved", "same", "added"])
def test_two_lists_of_words(tmp_path: Path, kind: str) -> None:
    folder = save_checkpoint("bert", tmp_path / "bert")
    content = json.loads(wordpiece().to_str())
    words = list(content["model"]["vocab"])
    moved = [*words[:5], *reversed(words[5:])]
    words = {"fewer": words[:700], "moved": moved, "same": words, "added": [*words, "[NEW]"]}[kind]
    content["model"]["vocab"] = {word: number for number, word in enumerate(words)}
    (folder / "tokenizer.json").write_text(json.dumps(content))
    notes = described(folder).notes
    if kind in ("same", "added"):
        assert notes == ()
    else:
        (note,) = notes
        assert "vocab.txt" in note


@pytest.mark.parametrize("direction", ["left", "right"])
@pytest.mark.parametrize("stated", [{}, {"truncation_side": "right"}])
def test_the_side_from_which_tokenizer_json_cuts(tmp_path: Path, direction: str, stated: dict[str, str]) -> None:
    folder = save_checkpoint("bert", tmp_path / "bert")
    backend = transformers.AutoTokenizer.from_pretrained(folder).backend_tokenizer
    backend.enable_truncation(10, direction=direction)
    backend.save(str(folder / "tokenizer.json"))
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | stated
    write_json(folder / "tokenizer_config.json", settings)
    ours, own = file_tokenizer(resolve(str(folder)), settings), described(folder)
    side = stated.get("truncation_side", direction)
    assert (ours.truncation_side, own.truncation_side) == (side, side)
