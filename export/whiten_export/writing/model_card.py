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
from whiten_runtime.bundle.space import space_of
from whiten_runtime.errors import encodable
from whiten_runtime.hub.locating import is_repository_id
from whiten_runtime.hub.uploading import CARD_FILE

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
        facts.append(("maximum length", f"{manifest.max_seq_length} tokens{side}"))
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
