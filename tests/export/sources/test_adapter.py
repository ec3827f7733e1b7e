"""Test LoRA adapters that the real peft saved, against peft's own model, in which nothing is merged; and refusals."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from support.checkpoints import change_config, save_adapter, save_checkpoint
from support.cli import ok, refused
from support.corpus import sentences
from support.families import FAMILIES, LAYERS, MAX_LENGTH, WIDENED
from whiten import Encoder
from whiten_export.sources import resolve as resolving
from whiten_export.sources.pytorch import PyTorchModel
from whiten_export.sources.resolve import resolve
from whiten_runtime.bundle.parity import GATES, compare

pytestmark = pytest.mark.slow

peft = pytest.importorskip("peft", reason="needs the extra test-all")

TEXTS = ["", "a", *sentences(30), "word " * 100]
IDS = np.array([[2, 7, 11, 19, 5, 3], [2, 30, 8, 3, 0, 0]])
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


def network_of(base: Path, model_class: str, adapter: Path | None) -> torch.nn.Module:
    """Load a network in float64, with peft's own layers beside the base's."""
    network = getattr(transformers, model_class).from_pretrained(base, dtype=torch.float64)
    if adapter is not None:
        network = peft.PeftModel.from_pretrained(network, str(adapter), autocast_adapter_dtype=False)
    return network.double().eval()  # type: ignore[no-any-return]


def last_state(network: torch.nn.Module, ids: torch.Tensor, mask: torch.Tensor) -> np.ndarray:
    """Return the last layer's state of each text's last token."""
    with torch.no_grad():
        state = network(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[-1].numpy()
    lengths = mask.numpy().sum(axis=1)
    return np.stack([rows[length - 1] if length else 0 * rows[0] for rows, length in zip(state, lengths, strict=True)])


def vectors_of(network: torch.nn.Module, base: Path, bundle: Path) -> np.ndarray:
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    tokenizer.padding_side = "right"
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    batch = tokenizer(TEXTS, padding=True, truncation=True, max_length=MAX_LENGTH, return_tensors="pt")
    stored = load_file(bundle / "whitening.safetensors")
    states = last_state(network, batch["input_ids"], batch["attention_mask"])
    return (states - stored["mean"]) @ stored["W"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def bert_adapter(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save an adapter of the small BERT."""
    folder = tmp_path_factory.mktemp("adapters") / "bert-adapter"
    return save_adapter(checkpoint("bert"), folder, "AutoModel", "FEATURE_EXTRACTION")


@pytest.fixture
def broken(bert_adapter: Path, tmp_path: Path) -> Path:
    """Copy the adapter, to be damaged."""
    return shutil.copytree(bert_adapter, tmp_path / "broken")


@pytest.fixture(scope="module")
def whole_llama(checkpoint: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save LLaMA with its language model head, which changes the names of the weights."""
    folder = tmp_path_factory.mktemp("adapters") / "whole-llama"
    shutil.copytree(checkpoint("llama", WIDENED), folder)
    network = transformers.AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    network.save_pretrained(folder)
    assert "lm_head.weight" in load_file(folder / "model.safetensors")
    return folder


@pytest.mark.parametrize(
    ("base", "model_class", "task"),
    [
        ("whole-llama", "AutoModelForCausalLM", "CAUSAL_LM"),
        ("llama", "AutoModelForCausalLM", "CAUSAL_LM"),
        ("bert", "AutoModel", "FEATURE_EXTRACTION"),
    ],
)
def test_exported_adapter_equals_peft(
    base: str,
    model_class: str,
    task: str,
    checkpoint: Callable[..., Path],
    whole_llama: Path,
    corpus_file: Path,
    tmp_path: Path,
    recwarn: pytest.WarningsRecorder,
) -> None:
    directory = whole_llama if base == "whole-llama" else checkpoint(base, WIDENED)
    adapter = save_adapter(directory, tmp_path / "my-adapter", model_class, task)
    options = ("--layers", "-1", "--pooling", "last", "--dim", "16", "--corpus", corpus_file)
    recwarn.clear()
    ok("export", adapter, *options, "--out", tmp_path / "b")
    assert not [warning for warning in recwarn if "transformers" in warning.filename or "peft" in warning.filename]
    with Encoder(tmp_path / "b") as encoder:
        ours = encoder.encode(TEXTS)
        source = encoder.manifest.source
    agreement = compare(ours, vectors_of(network_of(directory, model_class, adapter), directory, tmp_path / "b"))
    assert GATES["fp32"].passes(agreement), str(agreement)
    alone = compare(ours, vectors_of(network_of(directory, model_class, None), directory, tmp_path / "b"))
    assert alone.mean_cosine < 0.95, str(alone)
    assert (source.model, source.merged_into) == ("my-adapter", directory.name)
    assert source.weights_sha256 not in ("", resolve(str(directory)).weights_sha256)


@pytest.mark.parametrize(
    ("base", "model_class", "task", "options"),
    [
        ("bert", "AutoModelForSequenceClassification", "SEQ_CLS", {}),
        ("bert", "AutoModelForTokenClassification", "TOKEN_CLS", {}),
        ("bert", "AutoModel", None, {}),
        ("llama", "AutoModelForCausalLM", None, {}),
        ("bert", "AutoModel", "FEATURE_EXTRACTION", {"use_dora": True}),
        ("bert", "AutoModel", "FEATURE_EXTRACTION", {"bias": "all", "use_rslora": True}),
        ("bert", "AutoModel", "FEATURE_EXTRACTION", {"safe_serialization": False}),
    ],
)
def test_merged_adapters_of_every_kind_equal_peft(
    base: str,
    model_class: str,
    task: str | None,
    options: dict[str, Any],
    checkpoint: Callable[[str], Path],
    tmp_path: Path,
) -> None:
    """Adapters differ in the task that they were trained for, and in the weights that they hold."""
    adapter = save_adapter(checkpoint(base), tmp_path / "adapter", model_class, task, **options)
    assert (adapter / "adapter_model.bin").is_file() == (options.get("safe_serialization") is False)
    assert any("its head is left out" in note for note in resolve(str(adapter)).notes) == (
        task in ("SEQ_CLS", "TOKEN_CLS")
    )
    merged = PyTorchModel(resolve(str(adapter)), False, "cpu").reference((LAYERS,), "last").pooled(IDS, MASK)[0]
    tensors = torch.from_numpy(IDS), torch.from_numpy(MASK)
    want = last_state(network_of(checkpoint(base), model_class, adapter), *tensors)
    np.testing.assert_allclose(merged, want, atol=1e-5 * np.abs(want).max())
    alone = last_state(network_of(checkpoint(base), model_class, None), *tensors)
    assert np.abs(merged - alone).max() > 0.1


@pytest.mark.parametrize(
    ("base", "table", "options"),
    [
        ("qwen3", "embed_tokens", {"modules_to_save": ["embed_tokens"]}),
        ("qwen3", "embed_tokens", {"trainable_token_indices": [-2, -1]}),
        ("bert", "word_embeddings", {}),
        ("t5", "shared", {}),
        ("padded", "word_embeddings", {"modules_to_save": ["word_embeddings"]}),
    ],
)
def test_an_adapter_whose_vocabulary_is_another_equals_peft(
    base: str, table: str, options: dict[str, Any], checkpoint: Callable[..., Path], tmp_path: Path
) -> None:
    """The adapter has all rows of its table, and its tokenizer; its base has fewer, or more as padding."""
    if base == "padded":
        folder = save_checkpoint(replace(FAMILIES["bert"], unused=7), tmp_path / "base", WIDENED)
    else:
        folder = checkpoint(base, WIDENED) if base in FAMILIES else save_checkpoint(base, tmp_path / "base", WIDENED)
    factory = transformers.T5EncoderModel if base == "t5" else transformers.AutoModel
    network, tokenizer = factory.from_pretrained(folder), transformers.AutoTokenizer.from_pretrained(folder)
    rows = network.config.vocab_size
    tokenizer.add_tokens(["zyx", "wvu"])
    network.resize_token_embeddings(len(tokenizer))
    if "trainable_token_indices" in options:
        options = {"trainable_token_indices": {table: [len(tokenizer) - 2, len(tokenizer) - 1]}}
    torch.manual_seed(2)
    targets = {"qwen3": ["q_proj"], "t5": ["q"]}.get(base, ["query"])
    adapted = peft.get_peft_model(network, peft.LoraConfig(r=4, target_modules=targets, **options))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name or "delta" in name:
                parameter.normal_(std=0.2)
    adapter = tmp_path / "grown"
    adapted.save_pretrained(adapter)
    tokenizer.save_pretrained(adapter)
    texts = ["zyx and words", "wvu", "neither of both", "a zyx wvu zyx " * 4]
    ok("export", adapter, "--layers", "-1", "--whitening", "none", "--out", tmp_path / "b")
    with Encoder(tmp_path / "b") as encoder:
        ours = encoder.encode(texts)
    adapted.eval()
    for text, vector in zip(texts, ours, strict=True):
        ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=encoder.max_seq_length)
        with torch.no_grad():
            want = adapted(**ids).last_hidden_state[0].mean(0).numpy()
        assert np.linalg.norm(vector - want) < 1e-5 * np.linalg.norm(want), text
    for file in adapter.glob("*token*"):
        file.unlink()
    model = PyTorchModel(resolve(str(adapter)), False, "cpu")
    assert [f"of {len(tokenizer):,} tokens" in note for note in model.notes] == [True] * (len(tokenizer) > rows)
    width = network.config.hidden_size
    before = PyTorchModel(resolve(str(folder)), False, "cpu").count_weights((1,)).exported
    assert model.count_weights((1,)).exported - before == (len(tokenizer) - rows) * width


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"base_model_name_or_path": "{}/moved"}, True),
        ({"target_modules": ["value", "query"]}, True),
        ({"use_rslora": True}, False),
        ({"target_modules": ["query"]}, False),
    ],
    ids=str,
)
def test_settings_that_decide_vectors_name_an_adapter_and_the_place_of_its_base_does_not(
    bert_adapter: Path, broken: Path, checkpoint: Callable[[str], Path], changes: dict[str, Any], same: bool
) -> None:
    shutil.copytree(checkpoint("bert"), broken.parent / "moved")
    place = {name: value.replace("{}", str(broken.parent)) for name, value in changes.items() if isinstance(value, str)}
    change_config(broken, **changes | place)
    records = [PyTorchModel(resolve(str(folder)), False, "cpu").record for folder in (bert_adapter, broken)]
    assert records[0].weights_sha256 == records[1].weights_sha256
    assert (records[0].network_sha256 == records[1].network_sha256) is same


def test_tokenizer_of_the_adapter_is_preferred(
    bert_adapter: Path, checkpoint: Callable[[str], Path], broken: Path
) -> None:
    base = checkpoint("bert")
    assert resolve(str(bert_adapter)).tokenizer_directory == base
    own = transformers.AutoTokenizer.from_pretrained(base, do_lower_case=False, model_max_length=20)
    own.save_pretrained(broken)
    described = PyTorchModel(resolve(str(broken)), False, "cpu").tokenizer
    assert described.stated_length == 20
    assert described.own_ids(["The Committee"], 20) == own(["The Committee"])["input_ids"]
    of_base = PyTorchModel(resolve(str(bert_adapter)), False, "cpu").tokenizer
    assert of_base.own_ids(["The Committee"], 20) != described.own_ids(["The Committee"], 20)


def test_an_adapter_whose_tokenizer_is_not_that_of_its_base_is_told(
    broken: Path, checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """It may be that of another base: the tokens then mean nothing to the network."""
    base = Path(shutil.copytree(checkpoint("bert"), tmp_path / "base"))
    tokenizer = transformers.AutoTokenizer.from_pretrained(base)
    for folder in (base, broken):
        tokenizer.save_pretrained(folder)
    change_config(broken, base_model_name_or_path=str(base))
    assert PyTorchModel(resolve(str(broken)), False, "cpu").tokenizer.notes == ()
    content = json.loads((broken / "tokenizer.json").read_text("utf-8"))
    words = content["model"]["vocab"]
    words["the"], words["and"] = words["and"], words["the"]
    (broken / "tokenizer.json").write_text(json.dumps(content), "utf-8")
    notes = PyTorchModel(resolve(str(broken)), False, "cpu").tokenizer.notes
    assert any("2 tokens other ids" in note for note in notes)


@pytest.mark.parametrize("remote_code", [False, True])
def test_base_is_downloaded_at_the_revision_of_the_adapter_and_with_code_where_it_may_run(
    remote_code: bool, broken: Path, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    def download(hub_id: str, revision: str | None, remote_code: bool, *rest: object) -> Path:
        asked.append((hub_id, revision, remote_code))
        return checkpoint("bert")

    monkeypatch.setattr(resolving, "download", download)
    change_config(broken, base_model_name_or_path="some/base", revision="v2")
    found = resolve(str(broken), remote_code)
    assert asked == [("some/base", "v2", remote_code)]
    assert (found.merged_into, found.hub_id, found.revision) == ("some/base@v2", None, None)


def change_weights(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    change(weights)
    save_file(weights, folder / "adapter_model.safetensors")


def no_weights(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


def other_shapes(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.update({key: value[:, :3] for key, value in weights.items()}))


def missing_keys(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop(next(key for key in weights if "lora_B" in key)))


def write(name: str, content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes(content)


def base(path: str | None) -> Callable[[Path], object]:
    """Change the base's path, in which {} is the adapter's folder."""
    return lambda folder: change_config(folder, base_model_name_or_path=path and path.format(folder))


def wide_base(folder: Path) -> None:
    change_config(folder, base_model_name_or_path=str(save_checkpoint("bert", folder.parent / "wide", 2)))


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (base("{}/nowhere"), 2, "{}/nowhere"),
        (base(None), 2, "base_model_name_or_path"),
        (base("{}"), 2, "weights"),
        (no_weights, 2, "adapter_model.safetensors"),
        (write("adapter_config.json", b"{"), 1, "adapter_config.json"),
        (other_shapes, 1, "fit"),
        (lambda folder: change_config(folder, target_modules=["q_proj"]), 1, "fit"),
        (missing_keys, 1, "fit"),
        (lambda folder: change_config(folder, peft_type="SOMETHING"), 1, "fit"),
        (wide_base, 1, "size mismatch"),
        (write("adapter_model.safetensors", b"\x00" * 100), 1, "{}/adapter_model.safetensors"),
    ],
)
def test_adapters_that_cannot_be_merged_are_refused(
    broken: Path, change: Callable[[Path], object], code: int, message: str, tmp_path: Path
) -> None:
    change(broken)
    error = refused("export", broken, "--whitening", "none", "--out", tmp_path / "b", code=code)
    assert message.replace("{}", str(broken)) in error


def test_prompt_tuning_is_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    network = transformers.AutoModel.from_pretrained(checkpoint("bert"))
    config = peft.PromptTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=3)
    peft.get_peft_model(network, config).save_pretrained(tmp_path / "prompts")
    error = refused("export", tmp_path / "prompts", "--whitening", "none", "--out", tmp_path / "b", code=1)
    assert "PROMPT_TUNING" in error
