"""Say why a name or a folder is no model, and what an export leaves out of one that is."""

import re
from collections.abc import Sequence
from pathlib import Path

from whiten_export.sources.describe.checkpoint import Checkpoint, read_card
from whiten_export.sources.describe.files import (
    ADAPTER_CONFIG,
    INDEX,
    NETWORK_WEIGHTS,
    ONNX_PLACES,
    WORD_FILES,
    read_settings,
    tensor_names,
)
from whiten_export.sources.describe.hub import ADAPTERS_BELOW, HEADS
from whiten_export.sources.describe.published import MODULES_FILE, Published
from whiten_models.catalogue import near_matches
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.errors import UsageError
from whiten_runtime.hub.uploading import CARD_FILE

_DEEPEST = 3
"""Number of folders below a path in which a model is looked for."""

_MOST = 3
"""Number of folders that a message names."""

_TASK = re.compile(
    r"\w+For(SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice|Ranking)\w*|\w+RewardModel"
    r"|SEQ_CLS|TOKEN_CLS|QUESTION_ANS"
)
"""Classes of networks, and tasks of adapters, with a head that was trained on labels or preferences."""

_PROJECTION = "text_projection.weight"

_OF_MODELS = (".onnx", ".safetensors", ".bin", ".pt", ".pth", ".h5", ".json")


def unknown_error(model: str) -> UsageError:
    """Return the error of a name that is no model."""
    path = Path(model).suffix.lower() in WORD_FILES
    near = [] if path else near_matches(model)
    hint = f"did you mean {' or '.join(near)}?" if near else "check the path, or see whiten models for the catalogue"
    return UsageError(f"model '{model}' is not in the catalogue, not a directory and not a hub id (ORG/NAME); {hint}")


def words_error(model: str, path: Path) -> UsageError:
    """Return the error of a file that is no file of word vectors."""
    inside = path.suffix.lower() in _OF_MODELS
    way = f": name its folder, {path.parent}" if inside else ""
    return UsageError(f"'{model}' is a file; wanted a directory, or word vectors ({', '.join(WORD_FILES)}){way}")


def config_error(model: str, path: Path) -> UsageError:
    """Return the error of a folder without config.json."""
    graphs = sorted(file.name for file in path.glob("*.onnx"))
    if graphs:
        absent = [name for name in ("config.json", TOKENIZER_FILE) if not (path / name).is_file()]
        return UsageError(
            f"'{model}' has {graphs[0]}, but no {' and no '.join(absent)}: copy "
            f"{'both' if len(absent) == 2 else 'it'} from the model's repository"
        )
    if not path.is_dir():
        return UsageError(f"'{model}' has no config.json; {path} is not a folder: copy the model again")
    if below := _models_below(path):
        more = f", and {len(below) - _MOST} others" if len(below) > _MOST else ""
        return UsageError(
            f"'{model}' has no config.json, but a folder below has one: name {' or '.join(below[:_MOST])}{more}"
        )
    return UsageError(f"'{model}' has no config.json; wanted a directory written by save_pretrained")


def weights_error(model: str, path: Path) -> UsageError:
    """Return the error of a folder with config.json and without weights."""
    wanted = ", ".join((*NETWORK_WEIGHTS, *ONNX_PLACES))
    message = f"'{model}' has no weights ({wanted}, or parts with {INDEX}) in {path}; "
    if graphs := sorted(file.name for file in (*path.glob("*.onnx"), *path.glob("onnx/*.onnx"))):
        return UsageError(f"{message}it has {' and '.join(graphs[:_MOST])}: rename the one that you want to model.onnx")
    return UsageError(f"{message}wanted a directory written by save_pretrained, or by optimum-cli export onnx")


def base_note(model: str, base: str, own: Published) -> str:
    """Return what an export says of an adapter that does not say how it makes vectors, while its base does."""
    left = f", but for {', '.join(map(str, own.modules))}" if own.modules else ""
    return (
        f"adapter '{model}' does not say how it makes vectors, and its base '{base}' is an embedding model: to make "
        f"them as that does{left}, pass --layers -1 --pooling {own.pooling} --whitening none"
        f"{' --normalize' if own.normalize else ''}"
    )


def heads_note(path: Path) -> tuple[str, ...]:
    """Return what an export says of heads beside the one for dense vectors, such as bge-m3's; none is loaded."""
    heads = [f"{what} ({name})" for name, what in HEADS.items() if (path / name).is_file()]
    return (f"the heads for {' and '.join(heads)} are left out: the bundle gives dense vectors alone",) if heads else ()


def instructor_note(name: str) -> tuple[str, ...]:
    """Return what an export says of a folder that may be an INSTRUCTOR, which a pooling with the prompt makes wrong."""
    return (
        f"the pooling of {name} includes prompts; that of an INSTRUCTOR, such as hkunlp/instructor-base, leaves them "
        'out, but its files do not say so: if it is one, write "include_prompt": false into 1_Pooling/config.json',
    )


_OF_SENTENCES = ("config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json")
"""Files of sentence-transformers beside modules.json."""


def vectors_note(path: Path) -> tuple[str, ...]:
    """Return what an export says of a folder without modules.json that makes sentence vectors by another of its files.

    It is empty where no file says so.
    """
    files = [name for name in _OF_SENTENCES if (path / name).is_file()]
    if not files and read_card(path).get("pipeline_tag") == "sentence-similarity":
        files = [CARD_FILE]
    if not files:
        return ()
    return (
        f"{path} makes sentence vectors, as its {files[0]} says, but has no {MODULES_FILE}, which says how: the last "
        "layer is pooled, by mean unless --pooling is given, and not whitened; copy the model again if files are lost",
    )


def task_note(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return what an export says of a network that was trained for another task than to make vectors.

    Heads of a pretraining, such as BertForMaskedLM's, are usual: many encoders that were tuned afterwards name them.
    """
    known = checkpoint.published is not None or (checkpoint.entry is not None and checkpoint.entry.sentence_similarity)
    if checkpoint.kind not in ("transformers", "onnx") or known:
        return ()
    folder = checkpoint.adapter or checkpoint.directory
    settings = read_settings(folder / (ADAPTER_CONFIG if checkpoint.adapter else "config.json"))
    trained = _TASK.search(str([settings.get(name) for name in ("architectures", "task_type", "auto_mapping")]))
    if trained is None:
        return ()
    return (
        f"{folder} is of the kind {trained[0]}, such as a reranker (cross-encoder) or a classifier: its head is left "
        "out, and the vectors are of its hidden states, which were not trained to be compared; for search and "
        "similarity, export an embedding model",
    )


def projection_note(weights: Sequence[Path]) -> tuple[str, ...]:
    """Return what an export says of a text network with a projection, such as CLIP's, after its hidden states."""
    names = {name for file in weights if file.suffix == ".safetensors" for name in tensor_names(file)}
    if _PROJECTION not in names:
        return ()
    return (
        f"{_PROJECTION} is left out: the vectors are of the network's hidden states, and not its text embeddings, "
        "which CLIP compares with images",
    )


def adapters_note(path: Path) -> tuple[str, ...]:
    """Return what an export says of LoRA adapters in folders below a network, such as jina-embeddings-v3 and v5.

    The network without any of them gives other vectors than with one.
    """
    depths = range(1, ADAPTERS_BELOW + 1)
    configs = (config for depth in depths for config in path.glob("*/" * depth + ADAPTER_CONFIG))
    names = sorted(config.parent.relative_to(path).as_posix() for config in configs)
    if not names:
        return ()
    more = f" and {len(names) - _MOST} others" if len(names) > _MOST else ""
    return (
        f"{path} has LoRA adapters, of which none is applied: {', '.join(names[:_MOST])}{more}. To export the model "
        f"with one, name its folder; the base_model_name_or_path of its {ADAPTER_CONFIG} has to be the network's",
    )


def _models_below(path: Path) -> list[str]:
    """Return the folders below a path that have a config.json, the nearest first, but none inside another of them."""
    found: list[Path] = []
    for depth in range(1, _DEEPEST + 1):
        configs = sorted(path.glob("*/" * depth + "config.json"))
        found += [config.parent for config in configs if not any(one in config.parents for one in found)]
    return [str(folder) for folder in found]
