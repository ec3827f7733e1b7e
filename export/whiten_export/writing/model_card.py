"""Write README.md of a bundle: a model card, whose first lines the model hub reads."""

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from importlib.resources import files
from pathlib import Path
from string import Template

import msgspec
from huggingface_hub import ModelCardData

from whiten_runtime.bundle.bundle import file_record
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.parity import GATES
from whiten_runtime.bundle.records import ParityRecord, WhiteningRecord
from whiten_runtime.bundle.space import space_of
from whiten_runtime.errors import encodable
from whiten_runtime.hub.locating import is_repository_id
from whiten_runtime.hub.uploading import CARD_FILE
from whiten_runtime.inference.options import TEXT

_TEXTS = ("A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell.")


def with_model_card(stage: Path, manifest: Manifest) -> Manifest:
    """Write the card of a bundle whose manifest is otherwise complete, and return the manifest that lists it."""
    (stage / CARD_FILE).write_bytes(model_card(manifest).encode())
    listed = manifest.files | {CARD_FILE: file_record(stage / CARD_FILE)}
    return msgspec.structs.replace(manifest, files=dict(sorted(listed.items())))


def model_card(manifest: Manifest) -> str:
    """Return the card of a bundle, from the manifest without its files: YAML for the hub, then Markdown for people."""
    parts = [
        f"---\n{_front_matter(manifest)}\n---",
        f"# {_plain(manifest.name)}",
        _summary(manifest),
        _table(("", ""), _rows(manifest)),
        *_examples(manifest),
        *_agreement(manifest),
        *_isotropy(manifest.whitening),
        "## Licence",
        _licence(manifest),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(manifest: Manifest) -> str:
    source, text = manifest.source, manifest.input == "text"
    base = source.checkpoint or (source.merged_into or "").split("@")[0]
    data = ModelCardData(
        base_model=base if is_repository_id(base) else None,
        library_name="whiten",
        license=None if source.license is None else encodable(source.license),
        pipeline_tag="sentence-similarity" if text else None,
        tags=["whiten", "onnx"]
        + (["sentence-similarity", "feature-extraction"] if text else [])
        + (["whitening"] if manifest.whitening is not None else []),
    )
    return data.to_yaml(line_break="\n")


def _summary(manifest: Manifest) -> str:
    model = _code(manifest.source.model)
    if manifest.input == "vectors":
        return (
            f"A whitening of precomputed vectors, {model}, as one ONNX graph: each vector minus the mean of those "
            "that it was fitted on, times a matrix. Made with whiten-export."
        )
    white = ", whitened" if manifest.whitening is not None else ""
    return (
        f"Sentence embeddings of {model}{white}, as one ONNX graph from token ids to the finished vector, with its "
        "tokenizer and the vectors of a reference that `whiten verify` compares it with. Made with whiten-export."
    )


def _rows(manifest: Manifest) -> list[tuple[str, str]]:
    source, text = manifest.source, manifest.input == "text"
    origin = _code(source.checkpoint or source.model)
    at = f" at {_code(source.revision[:12])}" if source.revision else ""
    rows = [("source", origin + at)]
    if source.merged_into is not None:
        rows.append(("adapter of", _code(source.merged_into)))
    if source.ignored_code:
        rows.append(("own code", f"not run: {', '.join(map(_code, source.ignored_code))}"))
    if text:
        rows.append(
            ("network", f"{_plain(source.model_type)}, {source.num_hidden_layers} layers of {source.hidden_size}")
        )
        layers = ", ".join(map(str, manifest.layers))
        weights = ", ".join(f"{weight:.3g}" for weight in manifest.layer_weights or ())
        rows.append(("layers", f"{layers}{f' (weights {weights})' if weights else ''}; 0 is the embedding layer"))
        rows.append(("pooling", f"{manifest.pooling}{'' if manifest.include_prompt else ', without the prompt'}"))
    if manifest.modules:
        rows.append(("modules", ", ".join(map(_code, manifest.modules))))
    rows.append(("whitening", _whitening(manifest.whitening, "sentences" if text else "vectors")))
    size = f"{manifest.dimension} dimensions{', divided by the norm' if manifest.normalize else ''}"
    rows.append(("vectors", f"{size}; similarity: {manifest.similarity_fn_name}"))
    if manifest.matryoshka_dimensions:
        rows.append(("may be cut to", f"{', '.join(map(str, manifest.matryoshka_dimensions))} dimensions"))
    rows.append(("precision", f"{manifest.precision}, for {manifest.target}"))
    if text:
        side = "" if manifest.truncation_side == "right" else ", cut on the left"
        rows.append(("maximum length", f"{manifest.max_seq_length} tokens{side}"))
        rows.append(("prompts", _prompts(manifest)))
    if manifest.route is not None:
        rows.append(("route", _code(manifest.route)))
    rows.append(("space", f"{_code(space_of(manifest))}: vectors of bundles with this id can be compared"))
    return rows


def _whitening(whitening: WhiteningRecord | None, what: str) -> str:
    if whitening is None:
        return "none"
    corpus = ", ".join(_code(record.name) for record in whitening.corpus)
    return f"{whitening.description}; fitted on {whitening.n_samples:,} {what} of {corpus}"


def _prompts(manifest: Manifest) -> str:
    default = manifest.default_prompt_name
    shown = (
        f"{_code(name)}{' (the default)' if name == default else ''}: {_code(_quoted(prompt))}"
        for name, prompt in manifest.prompts.items()
    )
    return "; ".join(shown) or "none"


def _agreement(manifest: Manifest) -> list[str]:
    """Return the section of the comparisons that were made when the bundle was written."""
    records = [record for record in (manifest.parity, manifest.published) if record is not None]
    if not records:
        return []
    largest = "largest difference of a coordinate / norm"
    header = ("compared with", "vectors", "worst cosine", "mean cosine", largest)
    lines = [
        "Measured when the bundle was written; `whiten verify` measures it again, on your machine.",
        _table(header, map(_figures, records)),
        f"A bundle is written only if the first line keeps its bounds: {GATES[manifest.precision]}.",
    ]
    return ["## Agreement with the reference", *lines]


def _figures(record: ParityRecord) -> tuple[str, ...]:
    cosines = (f"1 - {max(0.0, 1 - cosine):.1e}" for cosine in (record.min_cosine, record.mean_cosine))
    return (_plain(record.reference), f"{record.vectors:,}", *cosines, f"{record.max_difference:.1e}")


def _isotropy(whitening: WhiteningRecord | None) -> list[str]:
    scores = whitening.isotropy_scores if whitening else {}
    if not scores:
        return []
    rows = [
        (name, *(f"{pair[place]:.3g}" for pair in scores.values())) for place, name in enumerate(("before", "after"))
    ]
    words = "How evenly the vectors of the corpus use their space: 1, 0 and 1 are best."
    return ["## Isotropy", words, _table(("whitening", *scores), rows)]


def _licence(manifest: Manifest) -> str:
    if manifest.input == "vectors":
        return "The licence is that of the vectors that the whitening was fitted on; look it up at their source."
    known = manifest.source.license
    stated = f", which is stated as {_code(known)}" if known else "; look it up there"
    return f"The weights are those of the source model, and so is their licence{stated}."


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def _examples(manifest: Manifest) -> list[str]:
    """Return the sections of the examples, each with code that runs in the folder that contains the bundle."""
    first = (
        f"The examples need whiten with its extra `cpu`. {_quoted(manifest.name)} is the bundle's directory; where it "
        'was uploaded to the model hub, its repository, "ORG/NAME", opens it too.'
    )
    name = "examples_of_texts.md" if manifest.input == "text" else "examples_of_vectors.md"
    template = files(__package__).joinpath(name).read_text("utf-8")
    prompt = manifest.prompts.get(manifest.default_prompt_name or "", "")
    sections = re.split(r"\n\n(?=### )", template.rstrip())
    if prompt and not manifest.include_prompt:  # which its mask would have to leave out
        sections = [section for section in sections if not section.startswith("### onnxruntime alone")]
    if manifest.route in ("query", "document"):
        other = "documents" if manifest.route == "query" else "queries"
        words = f"This bundle embeds one side of a search; {other} need the bundle of the other route."
        sections[-1] = f"### Search\n\n{words}"
    values = {
        "name": _quoted(manifest.name),
        "file": shlex.quote(manifest.name),
        "texts": f"[{', '.join(map(_quoted, _TEXTS))}]",
        "text": _quoted(prompt.replace(TEXT, _TEXTS[0]) if TEXT in prompt else prompt + _TEXTS[0]),
        "length": str(manifest.max_seq_length),
        "direction": "" if manifest.truncation_side == "right" else ', direction="left"',
        "width": str(manifest.source.hidden_size),
    }
    fence = "```"
    while any(fence in value for value in values.values()):
        fence += "`"
    return ["## Use", first, *(Template(section).substitute(values, fence=fence) for section in sections)]


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
