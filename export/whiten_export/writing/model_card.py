"""Write README.md of a bundle: a model card, whose first lines the model hub reads."""

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from whiten_export.writing.card_snippets import snippets
from whiten_export.writing.quoting import code, plain, quoted
from whiten_runtime.bundle.bundle import file_record
from whiten_runtime.bundle.manifest import IsotropyRecord, Manifest, ParityRecord, WhiteningRecord
from whiten_runtime.bundle.parity import gate_of
from whiten_runtime.bundle.space import space_of
from whiten_runtime.hub.names import is_repository_id
from whiten_runtime.hub.uploading import CARD_FILE


def with_model_card(stage: Path, manifest: Manifest) -> Manifest:
    """Write the card of a bundle whose manifest is otherwise complete, and return the manifest that lists it."""
    (stage / CARD_FILE).write_bytes(model_card(manifest).encode())
    files = manifest.files | {CARD_FILE: file_record(stage / CARD_FILE)}
    return msgspec.structs.replace(manifest, files=dict(sorted(files.items())))


def model_card(manifest: Manifest) -> str:
    """Return the card of a bundle: what the hub reads as YAML, then Markdown for people.

    It depends on the manifest alone, without the files that it lists.
    """
    parts = [
        "\n".join(["---", *_front_matter(manifest), "---"]),
        f"# {plain(manifest.name)}",
        _summary(manifest),
        _table(("", ""), _rows(manifest)),
        *snippets(manifest),
        *_agreement(manifest),
        *_isotropy(manifest.whitening),
        "## Licence",
        _licence(manifest),
    ]
    return "\n\n".join(parts) + "\n"


def _front_matter(manifest: Manifest) -> list[str]:
    """Return the lines of YAML, with every value that is not fixed between quotation marks."""
    source, text = manifest.source, manifest.input == "text"
    base = source.checkpoint or (source.merged_into or "").split("@")[0]
    lines = [f"base_model: {quoted(base)}"] if is_repository_id(base) else []
    lines.append("library_name: whiten")
    if source.license is not None:
        lines.append(f"license: {quoted(source.license)}")
    if text:
        lines.append("pipeline_tag: sentence-similarity")
    tags = ["whiten", "onnx", *(["sentence-similarity", "feature-extraction"] if text else [])]
    tags += ["whitening"] if manifest.whitening is not None else []
    return [*lines, "tags:", *(f"- {tag}" for tag in tags)]


def _summary(manifest: Manifest) -> str:
    model = code(manifest.source.model)
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
    origin = code(source.checkpoint or source.model)
    at = f" at {code(source.revision[:12])}" if source.revision else ""
    rows = [("source", origin + at)]
    if source.merged_into is not None:
        rows.append(("adapter of", code(source.merged_into)))
    if text:
        rows.append(
            ("network", f"{plain(source.model_type)}, {source.num_hidden_layers} layers of {source.hidden_size}")
        )
        layers = ", ".join(map(str, manifest.layers))
        weights = ", ".join(f"{weight:.3g}" for weight in manifest.layer_weights or ())
        rows.append(("layers", f"{layers}{f' (weights {weights})' if weights else ''}; 0 is the embedding layer"))
        rows.append(("pooling", f"{manifest.pooling}{'' if manifest.include_prompt else ', without the prompt'}"))
    if manifest.modules:
        rows.append(("modules", ", ".join(map(code, manifest.modules))))
    rows.append(("whitening", _whitening(manifest.whitening, "sentences" if text else "vectors")))
    size = f"{manifest.dimension} dimensions{', divided by the norm' if manifest.normalize else ''}"
    numbers = "; whole numbers from -127 to 127, exact as int8" if manifest.vectors == "int8" else ""
    rows.append(("vectors", f"{size}{numbers}; similarity: {manifest.similarity_fn_name}"))
    if manifest.matryoshka_dimensions:
        rows.append(("may be cut to", f"{', '.join(map(str, manifest.matryoshka_dimensions))} dimensions"))
    rows.append(("precision", f"{manifest.precision}, for {manifest.target}"))
    if text:
        side = "" if manifest.truncation_side == "right" else ", cut on the left"
        rows.append(("maximum length", f"{manifest.max_seq_length} tokens{side}"))
        rows.append(("prompts", _prompts(manifest)))
    if manifest.route is not None:
        rows.append(("route", code(manifest.route)))
    rows.append(("space", f"{code(space_of(manifest))}: vectors of bundles with this id can be compared"))
    return rows


def _whitening(whitening: WhiteningRecord | None, what: str) -> str:
    if whitening is None:
        return "none"
    parts: list[str] = [whitening.method]
    if whitening.method != "none" and whitening.beta != 1:
        parts.append(f"beta {whitening.beta:g}")
    if whitening.shrinkage:
        parts.append(f"shrinkage {whitening.shrinkage:.3g}")
    if whitening.common_components:
        parts.append(f"{whitening.common_components} common components removed")
    corpus = ", ".join(code(record.name) for record in whitening.corpus)
    return f"{', '.join(parts)}; fitted on {whitening.n_samples:,} {what} of {corpus}"


def _prompts(manifest: Manifest) -> str:
    default = manifest.default_prompt_name
    shown = (
        f"{code(name)}{' (the default)' if name == default else ''}: {code(quoted(prompt))}"
        for name, prompt in manifest.prompts.items()
    )
    return "; ".join(shown) or "none"


def _agreement(manifest: Manifest) -> list[str]:
    """Return the section of the comparisons that were made when the bundle was written."""
    found = [record for record in (manifest.parity, manifest.published) if record is not None]
    if not found:
        return []
    beyond = ", beyond rounding" if manifest.vectors == "int8" else ""
    largest = f"largest difference of a coordinate{beyond} / norm"
    header = ("compared with", "vectors", "worst cosine", "mean cosine", largest)
    gate = gate_of(manifest.precision, manifest.vectors)
    lines = [
        "Measured when the bundle was written; `whiten verify` measures it again, on your machine.",
        _table(header, map(_figures, found)),
        f"A bundle is written only if the first line keeps its bounds: {gate}.",
    ]
    return ["## Agreement with the reference", *lines]


def _figures(record: ParityRecord) -> tuple[str, ...]:
    cosines = (f"1 - {max(0.0, 1 - cosine):.1e}" for cosine in (record.min_cosine, record.mean_cosine))
    return (plain(record.reference), f"{record.vectors:,}", *cosines, f"{record.max_difference:.1e}")


def _isotropy(whitening: WhiteningRecord | None) -> list[str]:
    if whitening is None or whitening.isotropy_before is None or whitening.isotropy_after is None:
        return []
    pair = (whitening.isotropy_before, whitening.isotropy_after)
    rows = [(name, *_scores(record)) for name, record in zip(("before", "after"), pair, strict=True)]
    words = "How evenly the vectors of the corpus use their space: 1, 0 and 1 are best."
    header = ("whitening", "IsoScore", "average cosine", "partition score")
    return ["## Isotropy", words, _table(header, rows)]


def _scores(record: IsotropyRecord) -> tuple[str, ...]:
    return tuple(f"{score:.3g}" for score in (record.iso_score, record.average_cosine, record.partition_score))


def _licence(manifest: Manifest) -> str:
    if manifest.input == "vectors":
        return "The licence is that of the vectors that the whitening was fitted on; look it up at their source."
    known = manifest.source.license
    stated = f", which is stated as {code(known)}" if known else "; look it up there"
    return f"The weights are those of the source model, and so is their licence{stated}."


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)
