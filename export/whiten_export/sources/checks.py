"""Refuse what the files of a checkpoint contradict or lack, and say which of their parts an export leaves out."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, processors

from whiten_export.proof.probe_texts import TOKENIZER_TEXTS, probe_texts
from whiten_export.sources.checkpoint import (
    ADAPTER_CONFIG,
    ADAPTERS_BELOW,
    HEADS,
    INDEX,
    NETWORK_WEIGHTS,
    ONNX_PLACES,
    WORD_FILES,
    Authors,
    Checkpoint,
    read_card,
    read_settings,
    tensor_names,
)
from whiten_export.sources.own_code import code_files, way_to_code
from whiten_models.catalogue import near_matches
from whiten_runtime.bundle.bundle import TOKENIZER_FILE
from whiten_runtime.errors import UsageError, WhitenError
from whiten_runtime.hub import CARD_FILE

_DEEPEST = 3
"""Number of folders below a path in which a model is looked for."""

_MOST = 3
"""Number of folders that a message names."""

_OF_MODELS = (".onnx", ".safetensors", ".bin", ".pt", ".pth", ".h5", ".json")


def unknown_error(model: str) -> UsageError:
    path = Path(model).suffix.lower() in WORD_FILES
    near = [] if path else near_matches(model)
    hint = f"did you mean {' or '.join(near)}?" if near else "check the path, or see whiten models for the catalogue"
    return UsageError(f"model '{model}' is not in the catalogue, not a directory and not a hub id (ORG/NAME); {hint}")


def no_model_error(model: str, path: Path) -> UsageError:
    """Return the error of a path that has no model that is read, by what it has."""
    has_config = (path / "config.json").is_file()
    graphs = _some(sorted(file.name for place in ("*.onnx", "onnx/*.onnx") for file in path.glob(place)))
    below = _some(_models_below(path))
    weights = ", ".join((*NETWORK_WEIGHTS, *ONNX_PLACES))
    reasons = (
        (path.suffix.lower() in _OF_MODELS and path.is_file(), f"is a file; name its folder, {path.parent}"),
        (path.is_file(), f"is a file; wanted a directory, or word vectors ({', '.join(WORD_FILES)})"),
        (not path.is_dir(), f"has no folder {path}; copy the model again"),
        (graphs and has_config, f"has the graphs {graphs}; rename the one that you want to model.onnx"),
        (graphs, f"has {graphs}, but no config.json; copy it and {TOKENIZER_FILE} from the model's repository"),
        (
            has_config,
            f"has no weights ({weights}, or parts with {INDEX}) in {path}; wanted a directory written by "
            "save_pretrained or by optimum-cli export onnx, or a whole copy in the hub's cache",
        ),
        (below, f"has no config.json, but folders below it have one; name one of them: {below}"),
        (True, "has no config.json; wanted a directory written by save_pretrained"),
    )
    return UsageError(f"'{model}' " + next(sentence for holds, sentence in reasons if holds))


def _models_below(path: Path) -> list[str]:
    """Return the folders below a path that have a config.json, the nearest first, but none inside another of them."""
    folders: list[Path] = []
    for depth in range(1, _DEEPEST + 1):
        configs = sorted(path.glob("*/" * depth + "config.json"))
        folders += [config.parent for config in configs if not any(near in config.parents for near in folders)]
    return [str(folder) for folder in folders]


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST} others" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + more


def _heads(checkpoint: Checkpoint) -> str:
    folder = checkpoint.root or checkpoint.directory
    return " and ".join(f"{what} ({name})" for name, what in HEADS.items() if (folder / name).is_file())


def _instructor(checkpoint: Checkpoint) -> str:
    with_prompt = checkpoint.authors is not None and checkpoint.authors.include_prompt
    return checkpoint.name if with_prompt and "instructor" in checkpoint.name.lower() else ""


_OF_SENTENCES = ("config_sentence_transformers.json", "sentence_bert_config.json", "1_Pooling/config.json")
"""Files of sentence-transformers beside modules.json."""


def file_of_vectors(folder: Path) -> str:
    """Return the file that says of a folder without modules.json that it makes sentence vectors; "" if none does."""
    card = CARD_FILE if read_card(folder).get("pipeline_tag") == "sentence-similarity" else ""
    return next((name for name in _OF_SENTENCES if (folder / name).is_file()), card)


def _lost_modules(checkpoint: Checkpoint) -> str:
    return "" if checkpoint.authors else file_of_vectors(checkpoint.adapter or checkpoint.directory)


_TASK = re.compile(
    r"\w+For(SequenceClassification|TokenClassification|QuestionAnswering|MultipleChoice|Ranking)\w*|\w+RewardModel"
    r"|SEQ_CLS|TOKEN_CLS|QUESTION_ANS"
)
"""Classes of networks, and tasks of adapters, with a head that was trained on labels or preferences.

Heads of a pretraining, such as BertForMaskedLM's, are usual: many encoders that were tuned afterwards name them.
"""


def _task(checkpoint: Checkpoint) -> str:
    if checkpoint.authors is not None or (checkpoint.entry is not None and checkpoint.entry.sentence_similarity):
        return ""
    adapter = checkpoint.adapter
    settings = read_settings(adapter / ADAPTER_CONFIG if adapter else checkpoint.directory / "config.json")
    task = _TASK.search(str([settings.get(name) for name in ("architectures", "task_type", "auto_mapping")]))
    return task[0] if task else ""


def _projection(checkpoint: Checkpoint) -> str:
    name = "text_projection.weight"  # a network of texts such as CLIP's has it after its hidden states
    files = (file for file in checkpoint.weights if file.suffix == ".safetensors")
    return name if any(name in tensor_names(file) for file in files) else ""


def _adapters_below(checkpoint: Checkpoint) -> str:
    folder, depths = checkpoint.directory, range(1, ADAPTERS_BELOW + 1)
    configs = (config for depth in depths for config in folder.glob("*/" * depth + ADAPTER_CONFIG))
    return _some(sorted(config.parent.relative_to(folder).as_posix() for config in configs))


_NOTES: tuple[tuple[Callable[[Checkpoint], str], str], ...] = (
    (_heads, "the heads for {0} are left out: the bundle gives dense vectors alone"),
    (
        _instructor,
        "the pooling of {0} includes prompts; that of an INSTRUCTOR, such as hkunlp/instructor-base, leaves them out, "
        'but its files do not say so: if it is one, write "include_prompt": false into 1_Pooling/config.json',
    ),
    (
        _lost_modules,
        "{folder} makes sentence vectors, as its {0} says, but has no modules.json, which says how: the last layer is "
        "pooled, by mean unless --pooling is given, and not whitened; copy the model again if files are lost",
    ),
    (
        _task,
        "{folder} is of the kind {0}, such as a reranker (cross-encoder) or a classifier: its head is left out, and "
        "the vectors are of its hidden states, which were not trained to be compared; for search and similarity, "
        "export an embedding model",
    ),
    (
        _projection,
        "{0} is left out: the vectors are of the network's hidden states, and not its text embeddings, which CLIP "
        "compares with images",
    ),
    (
        _adapters_below,
        "{directory} has LoRA adapters, of which none is applied: {0}. To export the model with one, name its folder; "
        f"the base_model_name_or_path of its {ADAPTER_CONFIG} has to be the network's",
    ),
)
"""Functions that look for something in a checkpoint, and what an export says of it: parts left out, and doubts."""


def notes_of(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Return what an export says of a checkpoint, by the table of notes; nothing of word vectors."""
    if checkpoint.kind == "words":
        return ()
    folder, directory = checkpoint.adapter or checkpoint.directory, checkpoint.directory
    parts = ((look(checkpoint), sentence) for look, sentence in _NOTES)
    return tuple(sentence.format(part, folder=folder, directory=directory) for part, sentence in parts if part)


def base_note(model: str, base: str, authors: Authors) -> str:
    """Return what an export says of an adapter that does not say how it makes vectors, while its base does."""
    left = f", but for {', '.join(map(str, authors.modules))}" if authors.modules else ""
    return (
        f"adapter '{model}' does not say how it makes vectors, and its base '{base}' is an embedding model: to make "
        f"them as that does{left}, pass --layers -1 --pooling {authors.pooling} --whitening none"
        f"{' --normalize' if authors.normalize else ''}"
    )


TEXT_OF_CLIP = (
    "save its network of texts alone, CLIPTextModel.from_pretrained(MODEL).save_pretrained(FOLDER) of transformers, "
    "and export that folder; a bundle has no projection, so its vectors are not those that CLIP compares with images"
)
"""Says what to do with CLIP, which embeds images too."""


def way_to_text(settings: Mapping[str, Any]) -> str:
    """Return what to do about a network of texts and something else, such as CLIP; an empty string for another one."""
    if "text_config" not in settings:
        return ""
    if settings.get("model_type") == "clip":
        return f": {TEXT_OF_CLIP}"
    return ": save its network of texts alone, by transformers, and export that folder"


_OTHER_NAMES: Mapping[str, Mapping[str, str]] = {
    "nomic_bert": {
        "n_embd": "hidden_size",
        "n_layer": "num_hidden_layers",
        "n_head": "num_attention_heads",
        "n_inner": "intermediate_size",
        "layer_norm_epsilon": "layer_norm_eps",
        "rotary_emb_base": "rope_theta",
    },
}
"""Names of settings in own code, and those of the same settings in transformers, by architecture."""

_ONLY: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "nomic_bert": {
        "num_experts": (0, None),
        "activation_function": ("swiglu",),
        "prenorm": (False,),
        "parallel_block": (False,),
        "causal": (False,),
        "use_rms_norm": (False, None),
        "rotary_emb_fraction": (1.0,),
        "rotary_emb_interleaved": (False,),
        "rotary_emb_scale_base": (None,),
        "rotary_scaling_factor": (None,),
    },
    "gte": {
        "position_embedding_type": ("rope",),
        "layer_norm_type": ("layer_norm",),
        "logn_attention_scale": (False, None),
    },
}
"""Settings of own code with the only values that transformers' class computes, by architecture."""


def renamed_settings(checkpoint: Checkpoint, trust_remote_code: bool) -> dict[str, Any]:
    """Return the settings of a config that own code names otherwise than transformers, by transformers' names.

    There are none for own code that runs. Settings that transformers reads as well are left to it.
    """
    path = checkpoint.directory / "config.json"
    settings = read_settings(path) if path.is_file() else {}  # a table of sentence-transformers has none
    if trust_remote_code and code_files(checkpoint):
        return {}
    names = _OTHER_NAMES.get(str(settings.get("model_type")), {})
    numbers = {known: settings[name] for name, known in names.items() if type(settings.get(name)) in (int, float)}
    theta = numbers.pop("rope_theta", None)
    if theta is not None and not {"rope_theta", "rope_parameters", "rope_scaling"} & settings.keys():
        numbers["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    return {name: number for name, number in numbers.items() if name not in settings}


def check_config(checkpoint: Checkpoint, config: Any, version: str) -> None:
    """Refuse settings that transformers' class of a config does not read, where it computes with other values."""
    path = checkpoint.directory / "config.json"
    settings = read_settings(path)
    code = way_to_code(checkpoint)
    way = f"the checkpoint {code}" if code else "the network needs its authors' own code, with --trust-remote-code"
    for name, used in _unread(config.model_type, settings, config):
        raise WhitenError(
            f"{path}: {name} is {settings[name]!r}, but transformers {version} does not read it and computes a "
            f"{config.model_type} network with {used!r}; {way}"
        )


def _unread(kind: str, settings: Mapping[str, Any], config: Any) -> Iterator[tuple[str, Any]]:
    """Yield the settings of own code that are not read, and what transformers' class computes with."""
    read = vars(config) | (getattr(config, "rope_parameters", None) or {})  # such as rope_theta
    for name, known in _OTHER_NAMES.get(kind, {}).items():
        if settings.get(name) not in (None, read.get(known)):
            yield name, read.get(known)
    for name, values in _ONLY.get(kind, {}).items():
        if settings.get(name, values[0]) not in values:
            yield name, values[0]


def rotary_kinds(config: Any) -> set[str]:
    """Return the kinds of rotary embeddings that a config names, such as "yarn"."""
    settings = getattr(config, "rope_parameters", None) or getattr(config, "rope_scaling", None) or {}
    layers = [rotary for rotary in (settings, *settings.values()) if isinstance(rotary, Mapping)]
    return {str(rotary[name]) for rotary in layers for name in ("rope_type", "type") if name in rotary}


_WITH_ENDS = ("LlamaTokenizer", "CodeLlamaTokenizer", "GemmaTokenizer", "CohereTokenizer")
"""Classes that in transformers 4 add the tokens of tokenizer_config.json, whatever tokenizer.json adds."""

ENDS = {"add_bos_token": ("bos_token", True), "add_eos_token": ("eos_token", False)}
"""Settings that add a token to a text, the role of that token, and the default of these classes. The first begins a
text, the second ends it."""

_NUMBERS = ("In 1984 and 2023, 650841823 of 1000000 were counted.", "3 + 12 = 15; v2.10.1, 24/7")
"""Texts with numbers, which some tokenizers cut into digits."""

_FEW = 0.01
"""Share of tokens that a list of words may have otherwise than tokenizer.json: some lists repeat tokens."""

_BESIDE = ("vocab.txt", "vocab.json")
"""Names of lists of words."""


def read_tokenizer_config(checkpoint: Checkpoint) -> dict[str, Any]:
    """Read the tokenizer_config.json of a checkpoint; without one, there are no settings."""
    path = checkpoint.tokenizer_directory / "tokenizer_config.json"
    return read_settings(path) if path.is_file() else {}


def add_ends(backend: Tokenizer, settings: Mapping[str, Any], own: Mapping[str, bool]) -> str | None:
    """Let a tokenizer begin and end texts as tokenizer_config.json asks, where tokenizer.json does otherwise.

    transformers 4 obeys the former, transformers 5 the latter, and does not give these settings to own code that takes
    them. Models such as intfloat/e5-mistral-7b-instruct and Alibaba-NLP/gte-Qwen2-7B-instruct pool the token that ends
    a text.

    `own` has the settings of `ENDS` that own code of the tokenizer takes, with their defaults; it is empty without
    such code. What is returned is said of the change; it is None if both files agree.
    """
    usual = own or {name: begins for name, (_, begins) in ENDS.items()}
    contents = {name: _content(settings.get(role)) for name, (role, _) in ENDS.items()}
    tokens = {name: text for name, text in contents.items() if text and backend.token_to_id(text) is not None}
    encoding = backend.encode("")
    ids = [number for number, mask in zip(encoding.ids, encoding.attention_mask, strict=True) if mask]
    present = dict(zip(ENDS, (ids[:1], ids[-1:]), strict=True))
    added = [name for name, text in tokens.items() if present[name] == [backend.token_to_id(text)]]
    kind = str(settings.get("tokenizer_class")).removesuffix("Fast")
    obeyed = (bool(own) or kind in _WITH_ENDS) and any(name in settings for name in usual)

    def is_wanted(name: str) -> bool:
        """Return whether the settings ask for a token; what own code does not take is as tokenizer.json has it."""
        return bool(settings.get(name, obeyed and usual[name])) if name in usual else name in added

    wanted = [name for name in tokens if is_wanted(name)]
    missing = [name for name in wanted if name not in added]
    surplus = [name for name in added if name not in wanted] if obeyed else []
    if not (missing or surplus) or backend.num_special_tokens_to_add(False) > len(added):
        return None
    asked = f"tokenizer_config.json of {kind} asks for {' and '.join(missing)}, and tokenizer.json does not add it"
    if not obeyed:
        return f"{asked}: it is left out here; if the model was trained with it, save a tokenizer that adds it"
    first, last = ([tokens[name]] if name in wanted else [] for name in ENDS)
    backend.post_processor = processors.TemplateProcessing(
        single=[*first, "$A", *last],
        pair=[*first, "$A", *last, *(f"{token}:1" for token in first), "$B:1", *(f"{token}:1" for token in last)],
        special_tokens=[(token, backend.token_to_id(token)) for token in dict.fromkeys([*first, *last])],
    )
    refused = f"tokenizer_config.json of {kind} asks for no {' and '.join(surplus)}, and tokenizer.json adds it"
    changes = [f"{asked}: it is added here"] * bool(missing) + [f"{refused}: it is left out here"] * bool(surplus)
    return (
        f"{'; '.join(changes)}, as transformers 4 does; transformers 5 obeys tokenizer.json, and sentence-transformers "
        "gives other vectors with that"
    )


def _content(token: Any) -> str | None:
    """Return the text of a special token in tokenizer_config.json."""
    content = token.get("content") if isinstance(token, dict) else token
    return content if isinstance(content, str) and content else None


def words_note(folder: Path, backend: Tokenizer) -> str | None:
    """Return what is said of a list of words that gives tokens other ids than the tokenizer.json beside it."""
    known = backend.get_vocab()
    for path in (folder / name for name in _BESIDE if (folder / name).is_file()):
        try:
            words = read_settings(path) if path.suffix == ".json" else _lines(path)
        except WhitenError:  # it is not read besides
            continue
        others = [word for word, number in words.items() if known.get(word) != number]
        if len(others) > _FEW * len(words):
            return (
                f"{path.name} and tokenizer.json contradict each other: {len(others):,} of the {len(words):,} tokens "
                f"of {path.name}, such as {others[0][:40]!r}, have another id or none in tokenizer.json, which is "
                "used; remove the one that the model was not trained with"
            )
    return None


def _lines(path: Path) -> dict[str, int]:
    """Return the tokens of a vocab.txt, one in a line, and their ids."""
    lines = path.read_text("utf-8", errors="replace").split("\n")
    return {line.rstrip("\r"): number for number, line in enumerate(lines) if line.strip()}


def class_note(backend: Tokenizer, theirs: Tokenizer, name: str) -> str | None:
    """Return what is said of a class of transformers whose tokenizer gives other ids than that of tokenizer.json."""
    added = [token.content for token in theirs.get_added_tokens_decoder().values()]
    texts = [_printable(text) for text in (*probe_texts(1), *TOKENIZER_TEXTS, *_NUMBERS)]
    texts = [text for text in texts if not any(token in text for token in added)]
    try:
        compared = zip(texts, _ids(backend, texts), _ids(theirs, texts), strict=True)
    except Exception:  # the tokenizer fails on these texts: what reads it next says why
        return None
    for text, ids, own in compared:
        if ids != own:
            return (
                f"tokenizer.json gives {text[:40]!r} other tokens than {name}, which takes little but its words, and "
                "is used here and by sentence-transformers; if the model was trained with tokenizer.json, write "
                '"tokenizer_class": "PreTrainedTokenizerFast" into tokenizer_config.json'
            )
    return None


def _printable(text: str) -> str:
    """Return a text with single blanks for white space and control characters, on which many classes differ."""
    return " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())


def _ids(backend: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Return the token ids of texts, without special tokens and padding."""
    encodings = backend.encode_batch(list(texts), add_special_tokens=False)
    return [[number for number, mask in zip(row.ids, row.attention_mask, strict=True) if mask] for row in encodings]
