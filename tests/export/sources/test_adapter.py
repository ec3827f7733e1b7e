"""Test LoRA adapters that the real peft saved, against peft's own model, in which nothing is merged."""

import json
import pickle
import shutil
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from click.testing import Result
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from safetensors.numpy import load_file, save_file

from support.checkpoints import save_checkpoint
from support.cli import invoke
from support.corpus import sentences
from support.sizes import LAYERS, MAX_LENGTH
from whiten_export.commands.export import export
from whiten_export.sources.checkpoints import checkpoint as checkpoints
from whiten_export.sources.checkpoints.checkpoint import resolve
from whiten_export.sources.networks.pytorch import PyTorchModel
from whiten_runtime import Encoder
from whiten_runtime.bundle.parity import GATES, compare

TEXTS = ["", "a", *sentences(30), "word " * 100]
TARGETS = {"llama": ["q_proj", "v_proj"], "bert": ["query", "value"]}
IDS = np.array([[2, 7, 11, 19, 5, 3], [2, 30, 8, 3, 0, 0]])
MASK = np.array([[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])


def save_adapter(base: Path, folder: Path, model_class: str, task: str | None, **options: Any) -> Path:
    """Save an adapter with noise in both of its factors: a new one changes nothing."""
    torch.manual_seed(2)
    network = getattr(transformers, model_class).from_pretrained(base)
    safetensors = options.pop("safe_serialization", True)
    targets = TARGETS[network.config.model_type]
    adapted = get_peft_model(network, LoraConfig(task_type=task, r=4, lora_alpha=8, target_modules=targets, **options))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.2)
    adapted.save_pretrained(folder, safe_serialization=safetensors)
    return folder


def network_of(base: Path, model_class: str, adapter: Path | None) -> torch.nn.Module:
    """Load a network in float64, with peft's own layers beside the base's."""
    network = getattr(transformers, model_class).from_pretrained(base, dtype=torch.float64)
    if adapter is not None:
        network = PeftModel.from_pretrained(network, str(adapter), autocast_adapter_dtype=False)
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


run = partial(invoke, export)


@pytest.fixture(scope="module")
def whole_llama(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save LLaMA with its language model head, which changes the names of the weights."""
    folder = tmp_path_factory.mktemp("adapters") / "whole-llama"
    shutil.copytree(checkpoint("llama"), folder)
    network = transformers.AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    network.save_pretrained(folder)
    assert "lm_head.weight" in load_file(folder / "model.safetensors")
    return folder


@pytest.fixture(scope="module")
def bert_adapter(checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapters") / "bert-adapter"
    return save_adapter(checkpoint("bert"), folder, "AutoModel", "FEATURE_EXTRACTION")


@pytest.fixture
def broken(bert_adapter: Path, tmp_path: Path) -> Path:
    """Copy the adapter, to be damaged."""
    return shutil.copytree(bert_adapter, tmp_path / "broken")


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
    checkpoint: Callable[[str], Path],
    whole_llama: Path,
    corpus_file: Path,
    tmp_path: Path,
    recwarn: pytest.WarningsRecorder,
) -> None:
    directory = whole_llama if base == "whole-llama" else checkpoint(base)
    adapter = save_adapter(directory, tmp_path / "my-adapter", model_class, task)
    options = ("--layers", "-1", "--pooling", "last", "--dim", "16", "--corpus", corpus_file)
    recwarn.clear()
    result = run(adapter, *options, "--out", tmp_path / "b")
    assert result.exit_code == 0, result.stderr
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
    merged = PyTorchModel(resolve(str(adapter)), False, "cpu").reference((LAYERS,), "last").pooled(IDS, MASK)[0]
    tensors = torch.from_numpy(IDS), torch.from_numpy(MASK)
    want = last_state(network_of(checkpoint(base), model_class, adapter), *tensors)
    np.testing.assert_allclose(merged, want, atol=1e-5 * np.abs(want).max())
    alone = last_state(network_of(checkpoint(base), model_class, None), *tensors)
    assert np.abs(merged - alone).max() > 0.1


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


def test_base_is_downloaded_at_the_revision_of_the_adapter(
    broken: Path, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The adapter names the base and its revision."""
    asked = []

    def download(hub_id: str, revision: str | None, *rest: object) -> Path:
        asked.append((hub_id, revision))
        return checkpoint("bert")

    monkeypatch.setattr(checkpoints, "download", download)
    change_config(broken, base_model_name_or_path="some/base", revision="v2")
    found = resolve(str(broken))
    assert asked == [("some/base", "v2")]
    assert (found.merged_into, found.hub_id, found.revision) == ("some/base@v2", None, None)


def change_config(folder: Path, **changes: object) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | changes), "utf-8")


def change_weights(folder: Path, change: Callable[[dict[str, np.ndarray]], object]) -> None:
    weights = load_file(folder / "adapter_model.safetensors")
    change(weights)
    save_file(weights, folder / "adapter_model.safetensors")


def missing_base(folder: Path) -> None:
    change_config(folder, base_model_name_or_path=str(folder / "nowhere"))


def no_base(folder: Path) -> None:
    change_config(folder, base_model_name_or_path=None)


def no_weights(folder: Path) -> None:
    (folder / "adapter_model.safetensors").unlink()


def no_json(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("{")


def a_list(folder: Path) -> None:
    (folder / "adapter_config.json").write_text("[]")


def own_base(folder: Path) -> None:
    change_config(folder, base_model_name_or_path=str(folder))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (missing_base, "belongs to cannot be had: model '{}/nowhere' is not in the catalogue, not a directory"),
        (no_base, "no base_model_name_or_path in it"),
        (no_weights, "no adapter_model.safetensors"),
        (no_json, "adapter_config.json: cannot be read"),
        (a_list, "adapter_config.json: cannot be read"),
        (own_base, "has no PyTorch weights of its own to merge into"),
    ],
)
def test_incomplete_adapters_are_refused(
    broken: Path, change: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    change(broken)
    check_refused(run(broken, "--out", tmp_path / "b"), 2, message.format(broken))


def other_shapes(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.update({key: value[:, :3] for key, value in weights.items()}))


def other_targets(folder: Path) -> None:
    change_config(folder, target_modules=["q_proj"])


def missing_keys(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop(next(key for key in weights if "lora_B" in key)))


def not_safetensors(folder: Path) -> None:
    (folder / "adapter_model.safetensors").write_bytes(b"\x00" * 100)


def not_a_pickle(folder: Path) -> None:
    no_weights(folder)
    (folder / "adapter_model.bin").write_bytes(b"nothing")


def unknown_kind(folder: Path) -> None:
    change_config(folder, peft_type="SOMETHING")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (other_shapes, "size mismatch"),
        (other_targets, "q_proj"),
        (missing_keys, "Found missing adapter keys"),
        (not_safetensors, "does not fit"),
        (not_a_pickle, "does not fit"),
        (unknown_kind, "does not fit"),
    ],
)
def test_adapters_that_do_not_fit_their_base_are_refused(
    broken: Path, change: Callable[[Path], None], message: str, tmp_path: Path
) -> None:
    change(broken)
    result = run(broken, "--whitening", "none", "--out", tmp_path / "b")
    check_refused(result, 1, message)
    assert "the adapter does not fit the model that it names" in result.stderr


def test_base_of_another_size_is_refused(broken: Path, tmp_path: Path) -> None:
    change_config(broken, base_model_name_or_path=str(save_checkpoint("bert", tmp_path / "wide", 2)))
    check_refused(run(broken, "--whitening", "none", "--out", tmp_path / "b"), 1, "size mismatch")


class Payload:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("payload"),)


def test_pickled_adapter_runs_no_code(broken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    no_weights(broken)
    (broken / "adapter_model.bin").write_bytes(pickle.dumps(Payload()))
    check_refused(run(broken, "--whitening", "none", "--out", tmp_path / "b"), 1, "does not fit")
    assert not Path("payload").exists()


def test_prompt_tuning_is_refused(checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    network = transformers.AutoModel.from_pretrained(checkpoint("bert"))
    config = PromptTuningConfig(task_type="FEATURE_EXTRACTION", num_virtual_tokens=3)
    get_peft_model(network, config).save_pretrained(tmp_path / "prompts")
    result = run(tmp_path / "prompts", "--whitening", "none", "--out", tmp_path / "b")
    check_refused(result, 1, "holds PROMPT_TUNING, which is not merged; wanted LoRA")


def test_missing_peft_names_the_extra_to_install(
    bert_adapter: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "peft", None)
    result = run(bert_adapter, "--whitening", "none", "--out", tmp_path / "b")
    check_refused(result, 1, "pip install 'whiten[lora]'")


def check_refused(result: Result, code: int, message: str) -> None:
    *stages, error = result.stderr.splitlines()
    assert (result.exit_code, error.startswith("error: "), message in error) == (code, True, True), result.stderr
    assert all(line.startswith("·") for line in stages), result.stderr
