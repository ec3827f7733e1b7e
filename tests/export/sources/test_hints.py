"""Test that what is no model, or not quite one, is refused with the way out."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from support.checkpoints import write_json, write_modules, write_tensors
from support.cli import invoke, refused
from whiten_export.sources.resolve import resolve
from whiten_runtime.commands.console import whiten

RAW = ("--layers", "1", "--whitening", "none")


def put(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("files", "named", "says"),
    [
        (["model.onnx"], "", ("model.onnx", "no config.json")),
        (["a/config.json", "a/1_Pooling/config.json", "b/config.json"], "", ("{path}/a, {path}/b\n",)),
        ([f"{name}/config.json" for name in "abcde"], "", ("{path}/a, {path}/b, {path}/c and 2 others",)),
        (["vocab.txt"], "", ("no config.json",)),
        (["m/model.safetensors"], "m/model.safetensors", ("{path}/m\n",)),
        (["model.pdf"], "model.pdf", (".txt, .vec, .gz, .zip",)),
        (["config.json", "onnx/model_O4.onnx"], "", ("model_O4.onnx",)),
        (["config.json"], "", ("model.safetensors",)),
    ],
)
def test_a_path_without_a_model(files: list[str], named: str, says: tuple[str, ...], tmp_path: Path) -> None:
    error = refused("export", put(tmp_path, *files) / named, *RAW) + "\n"
    assert [words for words in says if words.format(path=tmp_path) not in error] == []


@pytest.mark.parametrize("prefix", ["bert.", ""])
def test_settings_of_2019_without_a_type(checkpoint: Callable[[str], Path], prefix: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "m"))
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {name: value for name, value in config.items() if name != "model_type"})
    weights = load_file(folder / "model.safetensors")
    write_tensors(folder / "model.safetensors", {prefix + name: tensor for name, tensor in weights.items()})
    assert '"bert"' in refused("export", folder, *RAW)


def test_a_projection_of_text_is_named_as_left_out(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "m"))
    assert resolve(str(folder)).notes == ()
    weights = load_file(folder / "model.safetensors")
    write_tensors(folder / "model.safetensors", weights | {"text_projection.weight": np.ones((4, 4), np.float32)})
    (note,) = resolve(str(folder)).notes
    assert note.startswith("text_projection.weight")


@pytest.mark.parametrize("kind", ["clip", "llava"])
def test_a_model_of_images_and_texts_is_refused(checkpoint: Callable[[str], Path], kind: str, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "m"))
    write_json(folder / "config.json", {"model_type": kind, "text_config": {}, "vision_config": {}})
    assert f"'{kind}'" in refused("export", folder, *RAW)


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("d", "a", "c", "b"), "a, b, c and 1 others"),
        (("a/b/c", "x/y/z/no"), "a/b/c"),
    ],
)
def test_adapters_below_a_network_are_named_as_left_out(
    checkpoint: Callable[[str], Path], tmp_path: Path, names: tuple[str, ...], said: str
) -> None:
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "m"))
    for name in names:
        put(folder, f"{name}/adapter_config.json")
    (note,) = resolve(str(folder)).notes
    assert said in note


@pytest.mark.parametrize(
    ("architectures", "said"),
    [
        (["BertForSequenceClassification"], "BertForSequenceClassification"),  # CrossEncoder of sentence-transformers
        (["XLMForQuestionAnsweringSimple"], "XLMForQuestionAnsweringSimple"),
        (["JinaBertForRanking"], "JinaBertForRanking"),
        (["Qwen2ForProcessRewardModel"], "Qwen2ForProcessRewardModel"),
        ("BertForSequenceClassification", "BertForSequenceClassification"),
        *((names, None) for names in (["BertModel"], ["LlamaForCausalLM"], [], None, 1, [None])),
    ],
)
def test_a_network_that_was_trained_on_labels_is_warned_of(
    checkpoint: Callable[[str], Path], tmp_path: Path, architectures: object, said: str | None
) -> None:
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "m"))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    write_json(folder / "config.json", config | {"architectures": architectures})
    notes = resolve(str(folder)).notes
    assert [str(said) in note for note in notes] == ([] if said is None else [True])
    write_modules(folder, "Transformer", "Pooling")
    (folder / "1_Pooling").mkdir()
    write_json(
        folder / "1_Pooling" / "config.json", {"pooling_mode_mean_tokens": True}
    )  # an embedding model, whatever its class, as gte-multilingual-base
    assert resolve(str(folder)).notes == ()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("config_sentence_transformers.json", "{}", True),
        ("sentence_bert_config.json", "{}", True),
        ("1_Pooling/config.json", "{}", True),
        ("README.md", "---\npipeline_tag: sentence-similarity\n---\n", True),
        ("README.md", "---\npipeline_tag: fill-mask\n---\n", False),
        ("README.md", "about sentence-similarity", False),
    ],
)
def test_a_lost_list_of_modules_does_not_make_a_model_one_to_whiten(
    name: str, content: str, says: bool, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "model"))
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(content)
    plan = invoke(whiten, "export", folder, "--plan", "--json")
    told = json.loads(plan.stdout)
    assert (told["manifest"]["layers"], told["whitening"]) == (([4], None) if says else ([1, 4], "auto"))


def test_a_tokenizer_whose_texts_have_several_types_is_refused(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """As those of XLNet and Funnel: the graph takes all types as 0, while transformers passes these on."""
    from transformers import AutoTokenizer

    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "m"))
    AutoTokenizer.from_pretrained(folder).save_pretrained(folder)
    content = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    content["post_processor"] = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "[CLS]", "type_id": 2}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"[CLS]": {"id": "[CLS]", "ids": [2], "tokens": ["[CLS]"]}},
    }
    write_json(folder / "tokenizer.json", content)
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "model_input_names": ["input_ids", "token_type_ids"]}
    write_json(folder / "tokenizer_config.json", kind)
    assert "[0, 2]" in refused("export", folder, *RAW, code=1)
