"""Test that what is no model, or not quite one, is refused with the way out."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from support.checkpoints import write_json, write_modules, write_tensors
from support.cli import invoke, ok, refused
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
        (["model_quantized.onnx"], "", ("model_quantized.onnx", "no config.json")),
        (["a/b/config.json", "a/vocab.txt"], "", ("no config.json", "name one of them: {path}/a/b\n")),
        (["a/config.json", "b/config.json"], "", ("{path}/a, {path}/b\n",)),
        (["a/config.json", "a/1_Pooling/config.json"], "", ("name one of them: {path}/a\n",)),
        ([f"{name}/config.json" for name in "abcde"], "", ("{path}/a, {path}/b, {path}/c and 2 others",)),
        (["vocab.txt"], "", ("no config.json", "save_pretrained")),
        (["model.onnx"], "model.onnx", ("is a file", "its folder, {path}\n")),
        (["m/model.safetensors"], "m/model.safetensors", ("is a file", "its folder, {path}/m\n")),
        (["model.pdf"], "model.pdf", ("is a file", ".txt, .vec, .gz, .zip")),
        (["config.json", "model_quantized.onnx"], "", ("model_quantized.onnx", "to model.onnx")),
        (["config.json", "onnx/model_O4.onnx"], "", ("model_O4.onnx", "to model.onnx")),
        (["config.json"], "", ("no weights (model.safetensors, pytorch_model.bin, model.onnx", "optimum-cli export")),
    ],
)
def test_a_path_without_a_model(files: list[str], named: str, says: tuple[str, ...], tmp_path: Path) -> None:
    error = refused("export", put(tmp_path, *files) / named, *RAW) + "\n"
    assert [words for words in says if words.format(path=tmp_path) not in error] == []


def test_an_archive_of_a_model(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w") as archive:
        archive.writestr("model/config.json", "{}")
    error = refused("export", tmp_path / "model.zip", "--whitening", "none", code=1)
    assert "holds no word vectors (.txt, .vec); if it is a model, unpack it and name its folder" in error


@pytest.mark.parametrize(
    ("prefix", "message"), [("bert.", '"bert" to it (its weights are named bert.*)'), ("", '"bert" to it, or')]
)
def test_settings_of_2019_without_a_type(
    checkpoint: Callable[[str], Path], prefix: str, message: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "m"))
    config = json.loads((folder / "config.json").read_text())
    write_json(folder / "config.json", {name: value for name, value in config.items() if name != "model_type"})
    weights = load_file(folder / "model.safetensors")
    write_tensors(folder / "model.safetensors", {prefix + name: tensor for name, tensor in weights.items()})
    assert f'has no model_type, which files of 2019 lack; add "model_type": {message}' in refused(
        "export", folder, *RAW
    )


def test_a_projection_of_text_is_named_as_left_out(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "m"))
    assert resolve(str(folder)).notes == ()
    weights = load_file(folder / "model.safetensors")
    write_tensors(folder / "model.safetensors", weights | {"text_projection.weight": np.ones((4, 4), np.float32)})
    (note,) = resolve(str(folder)).notes
    assert note.startswith("text_projection.weight is left out: the vectors are of the network's hidden states")


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("CLIPModel", "CLIPTextModel.from_pretrained(MODEL).save_pretrained(FOLDER) of transformers, and export that"),
        ("BERT", "wanted Transformer or StaticEmbedding: write sentence_transformers.models.Transformer, as it has"),
        ("WordEmbeddings", "the first module is WordEmbeddings; wanted Transformer or StaticEmbedding\n"),
    ],
)
def test_a_first_module_that_is_not_read(kind: str, message: str, tmp_path: Path) -> None:
    folder = write_modules(tmp_path / "m", kind, "Pooling")
    assert message in refused("export", folder, "--out", tmp_path / "b", code=1) + "\n"


@pytest.mark.parametrize(
    ("kind", "message"), [("clip", "a bundle has no projection"), ("llava", "save its network of texts alone")]
)
def test_a_model_of_images_and_texts_names_the_way_to_its_texts(
    checkpoint: Callable[[str], Path], kind: str, message: str, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "m"))
    write_json(folder / "config.json", {"model_type": kind, "text_config": {}, "vision_config": {}})
    error = refused("export", folder, *RAW)
    assert f"is of type '{kind}', without num_hidden_layers; wanted a text encoder: " in error
    assert message in error


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("d", "a", "c", "b"), "a, b, c and 1 others"),
        (("adapters/retrieval", "adapters/clustering"), "adapters/clustering, adapters/retrieval"),
        (("a", "b/c"), "a, b/c"),
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
    assert note.startswith(f"{folder} has LoRA adapters, of which none is applied: {said}. To export")


@pytest.mark.parametrize(
    ("architectures", "said"),
    [
        (["BertForSequenceClassification"], "BertForSequenceClassification"),  # CrossEncoder of sentence-transformers
        (["GemmaForSequenceClassification"], "GemmaForSequenceClassification"),
        (["BertForTokenClassification"], "BertForTokenClassification"),
        (["BertForQuestionAnswering"], "BertForQuestionAnswering"),
        (["BertForMultipleChoice"], "BertForMultipleChoice"),
        (["XLMForQuestionAnsweringSimple"], "XLMForQuestionAnsweringSimple"),
        (["JinaBertForRanking"], "JinaBertForRanking"),
        (["Qwen2ForProcessRewardModel"], "Qwen2ForProcessRewardModel"),
        ("BertForSequenceClassification", "BertForSequenceClassification"),
        *((names, None) for names in (["BertModel"], ["BertForMaskedLM"], ["BertForPreTraining"], ["BertLMHeadModel"])),
        *((names, None) for names in (["LlamaForCausalLM"], ["T5ForConditionalGeneration"], [], None, 1, [None])),
    ],
)
def test_a_network_that_was_trained_on_labels_is_warned_of(
    checkpoint: Callable[[str], Path], tmp_path: Path, architectures: object, said: str | None
) -> None:
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "m"))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    write_json(folder / "config.json", config | {"architectures": architectures})
    notes = resolve(str(folder)).notes
    assert [note.partition(",")[0] for note in notes] == ([] if said is None else [f"{folder} is of the kind {said}"])
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
    assert (f"as its {name} says, but has no modules.json" in plan.stderr) == says
    told = json.loads(plan.stdout)
    assert (told["manifest"]["layers"], told["whitening"]) == (([4], None) if says else ([1, 4], "auto"))


def test_a_cross_encoder_with_modules_is_refused_as_one(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    """As sentence-transformers 6 saves it."""
    folder = write_modules(Path(shutil.copytree(checkpoint("bert"), tmp_path / "m")), "Transformer")
    write_json(folder / "config_sentence_transformers.json", {"model_type": "CrossEncoder"})
    write_json(folder / "sentence_bert_config.json", {"transformer_task": "sequence-classification"})
    assert "model_type is 'CrossEncoder'; wanted SentenceTransformer" in refused("export", folder, *RAW, code=1)


def test_a_reranker_is_warned_of_in_one_line(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoint("bert"), tmp_path / "m"))
    config = json.loads((folder / "config.json").read_text("utf-8"))
    write_json(folder / "config.json", config | {"architectures": ["BertForSequenceClassification"]})
    warnings = [line for line in ok("export", folder, "--plan").stderr.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 1
    assert warnings[0].startswith(f"warning: {folder} is of the kind BertForSequenceClassification, such as a reranker")


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
    assert "gives tokens of one text the types [0, 2] (token_type_ids)" in refused("export", folder, *RAW, code=1)
