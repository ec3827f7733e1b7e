"""Write the files of a bundle beside its graph: its tokenizer, those of other programs, and its card."""

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import msgspec
import numpy as np
from huggingface_hub import ModelCardData
from safetensors.numpy import save

from whiten_export.sources.tokenizer import SourceTokenizer
from whiten_runtime.bundle.bundle import (
    EXTERNAL_DATA_FILE,
    MODEL_FILE,
    SEPARATE_WEIGHTS,
    TOKENIZER_FILE,
    TRANSFORMERS_JS,
    WHITENING_FILE,
    file_record,
)
from whiten_runtime.bundle.manifest import Manifest, Similarity
from whiten_runtime.bundle.parity import GATES
from whiten_runtime.bundle.space import space_of
from whiten_runtime.errors import encodable
from whiten_runtime.hub import CARD_FILE, is_repository_id
from whiten_runtime.inference.options import TEXT, Prompts
from whiten_whitening.maps import WhiteningMap

POOLING_FILE = "1_Pooling/config.json"
CONFIG_FILE = "config.json"


@dataclass(frozen=True)
class Export:
    """Bundle that was written.

    Attributes:
        path: the bundle's directory.
        manifest: manifest of the bundle.
    """

    path: Path
    manifest: Manifest

    @property
    def bytes(self) -> int:
        """Return the size of all files that the manifest lists."""
        return sum(record.bytes for record in self.manifest.files.values())


def write_whitening(stage: Path, fitted: WhiteningMap) -> None:
    n = np.asarray([fitted.n_samples], np.int64)
    arrays = {"mean": fitted.mean, "W": fitted.weight, "eigenvalues": fitted.eigenvalues, "n": n}
    arrays |= {"covariance": fitted.covariance, "corpus_mean": fitted.corpus_mean}
    (stage / WHITENING_FILE).write_bytes(save({name: np.ascontiguousarray(array) for name, array in arrays.items()}))


def write_tokenizer(root: Path, tokenizer: SourceTokenizer, max_seq_length: int) -> None:
    """Write `tokenizer.json` without truncation or padding, and the files that describe it to other programs."""
    content = json.loads(tokenizer.json)
    content["truncation"] = content["padding"] = None
    (root / TOKENIZER_FILE).write_text(json.dumps(content, ensure_ascii=False), "utf-8")
    _write_json(root / "special_tokens_map.json", dict(tokenizer.specials))
    _write_json(
        root / "tokenizer_config.json",
        {
            **tokenizer.specials,
            "tokenizer_class": "PreTrainedTokenizerFast",
            "model_max_length": max_seq_length,
            "model_input_names": ["input_ids", "attention_mask"],
            "padding_side": "right",
            "truncation_side": tokenizer.truncation_side,
            "clean_up_tokenization_spaces": False,
        },
    )


def write_client_files(
    root: Path, config: Mapping[str, Any], dimension: int, max_seq_length: int, prompts: Prompts, similarity: Similarity
) -> None:
    """Write the files of sentence-transformers and others, which pool the graph's [n, 1, k] output as one token."""
    described = {"max_position_embeddings": max_seq_length} | dict(config)
    separate_weights = (root / EXTERNAL_DATA_FILE).is_file()
    _write_json(root / CONFIG_FILE, described | {TRANSFORMERS_JS: _transformers_js(separate_weights)})
    _write_json(root / "sentence_bert_config.json", {"max_seq_length": max_seq_length, "do_lower_case": False})
    # Other programs know no templates, and would pool a prompt that has to be left out.
    texts = {name: text for name, text in prompts.texts.items() if TEXT not in text} if prompts.pooled else {}
    _write_json(
        root / "config_sentence_transformers.json",
        {
            "prompts": texts,
            "default_prompt_name": prompts.default if prompts.default in texts else None,
            "similarity_fn_name": similarity,
        },
    )
    modules = (("", "Transformer"), ("1_Pooling", "Pooling"))
    _write_json(
        root / "modules.json",
        [
            {"idx": index, "name": str(index), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for index, (path, kind) in enumerate(modules)
        ],
    )
    write_pooling(root, dimension)


def write_pooling(root: Path, dimension: int) -> None:
    """Write the file that gives sentence-transformers the number of dimensions."""
    (root / POOLING_FILE).parent.mkdir(exist_ok=True)
    _write_json(
        root / POOLING_FILE,
        {
            "word_embedding_dimension": dimension,
            "pooling_mode_cls_token": True,
            "pooling_mode_mean_tokens": False,
            "pooling_mode_max_tokens": False,
            "pooling_mode_mean_sqrt_len_tokens": False,
        },
    )


def rewrite_transformers_js(root: Path, separate_weights: bool) -> None:
    """Tell transformers.js anew whether the graph's weights are a file of their own, if `config.json` is an object."""
    try:
        content = json.loads((root / CONFIG_FILE).read_text("utf-8"))
    except (ValueError, RecursionError):
        return
    if not isinstance(content, dict):
        return
    _write_json(root / CONFIG_FILE, content | {TRANSFORMERS_JS: _transformers_js(separate_weights)})


def _transformers_js(separate_weights: bool) -> dict[str, Any]:
    """Return the settings by which transformers.js finds the graph, of any precision, and the weights beside it.

    "fp32" stands for a name without an ending, such as `_quantized`, which it would look for in a browser.
    """
    weights = {SEPARATE_WEIGHTS: {Path(MODEL_FILE).name: 1}} if separate_weights else {}
    return {"dtype": "fp32"} | weights


def _write_json(path: Path, content: Any) -> None:
    text = json.dumps(content, indent=2, ensure_ascii=False, sort_keys=True) + "\n"
    path.write_bytes(text.encode())  # with the same ends of lines on every system


_TEXTS = ("A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell.")
_PROOF = ("compared with", "vectors", "worst cosine", "mean cosine", "largest difference of a coordinate / norm")


def with_model_card(stage: Path, manifest: Manifest) -> Manifest:
    """Write the card of a bundle whose manifest is otherwise complete, and return the manifest that lists it."""
    (stage / CARD_FILE).write_bytes(model_card(manifest).encode())
    listed = manifest.files | {CARD_FILE: file_record(stage / CARD_FILE)}
    return msgspec.structs.replace(manifest, files=dict(sorted(listed.items())))


def model_card(manifest: Manifest) -> str:
    """Return the card of a bundle, from the manifest without its files: YAML for the hub, then Markdown for people."""
    source, text = manifest.source, manifest.input == "text"
    whole, *uses = re.split("<!-- .* -->\n", files(__package__).joinpath("model_card.md").read_text("utf-8"))
    names = {
        "name": _quoted(manifest.name),
        "file": shlex.quote(manifest.name),
        "texts": f"[{', '.join(map(_quoted, _TEXTS))}]",
        "width": str(source.hidden_size),
    }
    fence = "```"
    while any(fence in name for name in names.values()):
        fence += "`"
    kind = f"Sentence embeddings of {_code(source.model)}" if text else f"A whitening of vectors, {_code(source.model)}"
    white = ", whitened" if text and manifest.whitening is not None else ""
    stated = f", which is stated as {_code(source.license)}" if source.license else "; look it up there"
    return Template(whole).substitute(
        names,
        front_matter=_front_matter(manifest),
        title=_plain(manifest.name),
        summary=f"{kind}{white}, as one ONNX graph.",
        facts=_table(("", ""), _facts(manifest)),
        use=Template(uses[0 if text else 1].rstrip()).substitute(names, fence=fence),
        proof=_proof(manifest),
        licence=f"The {'weights' if text else 'vectors'} are those of the source, and so is their licence{stated}.",
    )


def _front_matter(manifest: Manifest) -> str:
    source, text = manifest.source, manifest.input == "text"
    base = source.checkpoint or (source.merged_into or "").split("@")[0]
    data = ModelCardData(
        base_model=base if is_repository_id(base) else None,
        library_name="whiten",
        license=None if source.license is None else encodable(source.license),
        pipeline_tag="sentence-similarity" if text else None,
        tags=[
            *("whiten", "onnx"),
            *(("sentence-similarity", "feature-extraction") if text else ()),
            *(() if manifest.whitening is None else ("whitening",)),
        ],
    )
    return data.to_yaml(line_break="\n")


def _facts(manifest: Manifest) -> list[tuple[str, str]]:
    """Return the rows of the table that says what the bundle is."""
    source, whitening, text = manifest.source, manifest.whitening, manifest.input == "text"
    revision = f" at {_code(source.revision[:12])}" if source.revision else ""
    facts = [("source", _code(source.checkpoint or source.model) + revision)]
    if source.merged_into is not None:
        facts.append(("adapter of", _code(source.merged_into)))
    if source.remote_code:
        facts.append(("own code", f"run: {', '.join(map(_code, source.remote_code))}"))
    if source.ignored_code:
        facts.append(("own code", f"not run: {', '.join(map(_code, source.ignored_code))}"))
    if text:
        network = f"of {source.num_hidden_layers} ({_plain(source.model_type)}); 0 is the embedding layer"
        facts.append(("layers", f"{', '.join(map(str, manifest.layers))} {network}"))
        facts.append(("pooling", f"{manifest.pooling}{'' if manifest.include_prompt else ', without the prompt'}"))
    if manifest.modules:
        facts.append(("modules", ", ".join(map(_code, manifest.modules))))
    if source.left_out:
        facts.append(("left out", f"{', '.join(map(_code, source.left_out))}, by the caller of the export"))
    white = "none"
    if whitening is not None:
        corpus = ", ".join(_code(record.name) for record in whitening.corpus)
        fitted = f"{whitening.n_samples:,} {'sentences' if text else 'vectors'} of {corpus}"
        white = f"{whitening.description}; fitted on {fitted}"
    facts.append(("whitening", white))
    size = f"{manifest.dimension} dimensions{', divided by the norm' if manifest.normalize else ''}"
    facts.append(("vectors", f"{size}; similarity: {manifest.similarity_fn_name}"))
    if manifest.matryoshka_dimensions:
        facts.append(("may be cut to", f"{', '.join(map(str, manifest.matryoshka_dimensions))} dimensions"))
    facts.append(("precision", f"{manifest.precision}, for {manifest.target}"))
    if text:
        side = "" if manifest.truncation_side == "right" else ", cut on the left"
        most = f", of {manifest.max_characters:,} characters" if manifest.max_characters else ""
        facts.append(("maximum length", f"{manifest.max_seq_length} tokens{most}{side}"))
        if (memory := manifest.memory) is not msgspec.UNSET:
            facts.append(("memory", f"besides the weights, a text of {memory.in_words(manifest.max_seq_length)}"))
    for name, prompt in manifest.prompts.items():
        default = ", the default" if name == manifest.default_prompt_name else ""
        facts.append(("prompt", f"{_code(name)}{default}: {_code(_quoted(prompt))}"))
    if manifest.route is not None:
        facts.append(("route", f"{_code(manifest.route)}; a search needs the bundle of the other route too"))
    return [*facts, ("space", f"{_code(space_of(manifest))}: vectors of bundles with this id can be compared")]


def _proof(manifest: Manifest) -> str:
    """Return the comparisons that were made when the bundle was written."""
    rows = [
        (
            _plain(record.reference),
            f"{record.vectors:,}",
            *(f"1 - {max(0.0, 1 - cosine):.1e}" for cosine in (record.min_cosine, record.mean_cosine)),
            f"{record.max_difference:.1e}",
        )
        for record in (manifest.parity, manifest.published)
        if record is not None
    ]
    again = "Measured when the bundle was written; `whiten verify` measures it again, on your machine."
    gate = GATES[manifest.precision]
    return f"{again}\n\n{_table(_PROOF, rows)}\n\nA bundle is written only if the first line keeps the bounds {gate}."


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _quoted(text: str) -> str:
    """Return a text between quotation marks, as Python reads it."""
    return "".join(map(_visible, json.dumps(encodable(text), ensure_ascii=False)))


def _plain(text: str) -> str:
    """Return a text in one line that Markdown shows as it is."""
    return re.sub(r"([\\`*_\[\]<>#&~])", r"\\\1", _one_line(text))


def _code(text: str) -> str:
    """Return a text in one line, as code of Markdown."""
    line = _one_line(text)
    marks = "`" * (1 + max(map(len, re.findall("`+", line)), default=0))
    space = " " if line[:1] == "`" or line[-1:] == "`" else ""
    return f"{marks}{space}{line}{space}{marks}"


def _one_line(text: str) -> str:
    return "".join(map(_visible, " ".join(encodable(text).split())))


def _visible(character: str) -> str:
    """Return a character, or its code if it cannot be shown."""
    return character if character.isprintable() else character.encode("unicode_escape").decode()
