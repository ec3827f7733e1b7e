"""Implement `whiten-export`: one command from a pretrained language model to a bundle."""

import time
from pathlib import Path
from typing import Any, get_args

import click

from whiten_export.commands import shared
from whiten_export.commands.shared import parse_numbers
from whiten_export.graph.poolings import POOLINGS
from whiten_export.recipe import WHITENINGS, Recipe, named_spec
from whiten_models.catalogue import find, recording_folder
from whiten_runtime.bundle.manifest import Precision, Target
from whiten_runtime.commands import console
from whiten_runtime.commands.console import ConsoleReporter, WholeNumber, command, heading, option
from whiten_runtime.errors import UsageError, needing
from whiten_runtime.files.corpus import BUILTIN_CORPUS
from whiten_whitening.maps import Method, parse_shrinkage

_FOR_VECTORS = {
    *("model", "from_vectors", "whitening", "dim", "column", "shrinkage", "normalize", "align_to"),
    *("out", "force", "as_json", "quiet"),
}


@command(
    "export",
    section="Make",
    examples=(
        "whiten-export minilm --precision int8",
        "whiten-export bert-base --layers 1,12",
    ),
)
@click.argument("model", required=False)
@heading("Model")
@option(
    "--layers",
    metavar="L,L",
    help="Layers to average; 0 is the embedding layer. Negative ones count from the top. Without it: an embedding "
    "model's own, else the catalogue's, else 1 and the last. Low layers are for similarity of short texts, not search.",
)
@option(
    "--pooling",
    metavar="NAME",
    help=f"How one vector is made of the tokens. {'; '.join(f'{name}: {row.phrase}' for name, row in POOLINGS.items())}"
    ". Several joined by + are concatenated. The default is the model's own, else mean.",
)
@option("--max-length", type=WholeNumber(min=1), metavar="N", help="Tokens a text may have. [default: the model's]")
@option("--trust-remote-code", is_flag=True, help="Run Python code that comes with the checkpoint.")
@option("--device", metavar="NAME", default="cpu", show_default=True, help="Where to compute: cpu, cuda or cuda:1.")
@option(
    "--route",
    metavar="NAME",
    help="Route of a sentence-transformers Router, such as query or document.",
)
@option(
    "--leave-out",
    multiple=True,
    metavar="MODULE",
    help="Module behind the pooling that is left out, such as a quantiser: a class of modules.json. Repeatable.",
)
@option(
    "--matryoshka",
    metavar="K,K",
    help="Dimensions that the model's vectors may be cut to. For a model trained with Matryoshka loss that the "
    "catalogue does not know, exported without a whitening.",
)
@option(
    "--from-vectors",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Whiten vectors that you have instead. A file .npy, .parquet or .jsonl; MODEL is then the name of the bundle.",
)
@heading("Whitening")
@option(
    "--whitening",
    type=click.Choice([*WHITENINGS, "auto", "none"]),
    metavar="METHOD",
    help=f"Last step of the graph: {', '.join(get_args(Method))}, {shared.WEAKER}, auto or none. auto chooses by "
    "measuring, and says why. The default is auto; none for an embedding model, if you name neither layers nor an "
    "option of the whitening; pca with --shrinkage.",
)
@shared.dim_option
@option(
    "--corpus",
    multiple=True,
    metavar="FILE",
    help="Sentences to fit on. Best are sentences like yours. Files of .txt, .jsonl, .csv, .tsv, .parquet (.gz). "
    f"Repeatable. [default: {BUILTIN_CORPUS}]",
)
@option(
    "--column",
    metavar="COLUMN",
    help="Column or key of the sentence in --corpus. With --from-vectors, that of the vector.",
)
@shared.prompt_option
@shared.max_sentences_option
@shared.shrinkage_option
@shared.dev_option
@option(
    "--align-to",
    type=click.Path(),
    metavar="OLD",
    help="Rotate the new whitening so that vectors stored with OLD stay usable. OLD is a bundle of the same model and "
    "layers.",
)
@heading("Graph")
@option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    default="fp32",
    show_default=True,
    metavar="TYPE",
    help="fp32, fp16 or int8. int8: a quarter of the size, faster on CPUs, most with VNNI or AMX. fp16: half the size; "
    "CPUs still compute in float32.",
)
@option(
    "--normalize/--no-normalize",
    default=None,
    help="Divide each vector by its L2 norm inside the graph. [default: as the authors do, if the model is exported as "
    "published; else no]",
)
@option(
    "--target",
    type=click.Choice(get_args(Target)),
    default="cpu",
    show_default=True,
    metavar="|".join(get_args(Target)),
    help="Where the graph will run. With cuda, operators are fused for NVIDIA's GPUs; with --precision fp16, the "
    "network also computes in fp16.",
)
@heading("Output")
@option(
    "-o",
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Directory of the bundle. The default is bundles/NAME-l1-l6 and the like.",
)
@shared.force_option
@option(
    "--plan",
    is_flag=True,
    help="Print what would be written, and the memory, disk and time it takes; write nothing. A network's weights are "
    "not downloaded.",
)
@click.version_option(package_name="whiten")
def export(
    model: str | None,
    from_vectors: Path | None,
    layers: str | None,
    matryoshka: str | None,
    whitening: str | None,
    dim: int | None,
    shrinkage: str,
    corpus: tuple[str, ...],
    column: str | None,
    normalize: bool | None,
    out: Path | None,
    force: bool,
    plan: bool,
    as_json: bool,
    **choices: Any,
) -> None:
    """Export a model to a bundle with one ONNX graph.

    The graph computes sentence vectors from token ids. The bundle also holds the tokenizer, and the proof that the
    graph computes what the model computes.

    MODEL is a name of the catalogue (see `whiten models`), a directory written by save_pretrained, by optimum-cli
    export onnx or by peft (a LoRA adapter), a file of word vectors in GloVe's text format, or a hub id, ORG/NAME or
    ORG/NAME@REVISION.
    """
    started = time.monotonic()
    reporter = ConsoleReporter()
    if from_vectors is not None:
        _refuse_for_vectors()
        shrunk = parse_shrinkage(shrinkage)
        spec = None if whitening == "auto" else named_spec(whitening or "pca", dim, shrunk)  # type: ignore[arg-type]
        with needing("export"):
            from whiten_export.refit import export_vectors
        result = export_vectors(
            from_vectors,
            out,
            force,
            reporter,
            name=model,
            column=column,
            spec=spec or "auto",
            normalize=bool(normalize),
            dim=dim,
            shrinkage=shrunk,
            align_to=choices["align_to"],
        )
    elif model is None:
        raise UsageError("MODEL is missing; give a name of the catalogue (whiten models), a directory or a hub id")
    else:
        recipe = Recipe(
            model,
            layers=None if layers is None else parse_numbers("layers", layers),
            matryoshka=None if matryoshka is None else parse_numbers("matryoshka", matryoshka, "256,128"),
            whitening=None if whitening == "none" else whitening or "default",  # type: ignore[arg-type]
            dim=dim,
            shrinkage=parse_shrinkage(shrinkage),
            corpus=corpus or None,
            column=column,
            normalize=normalize,
            **choices,
        )
        entry = find(model)
        extra = "export" if entry is None or recording_folder(entry) is None else "quickstart"
        if plan:
            with needing(extra):
                from whiten_export.plan import plan_export
            shared.tell_plan(plan_export(recipe, out, force, reporter), reporter, as_json)
            return
        with needing(extra):
            from whiten_export.export import export_bundle
        result = export_bundle(recipe, out, force, reporter)
    shared.tell_written(result, reporter, as_json, time.monotonic() - started)


def _refuse_for_vectors() -> None:
    context = click.get_current_context()
    for name in context.params.keys() - _FOR_VECTORS:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise UsageError(f"--{name.replace('_', '-')} is for models, not for --from-vectors; leave it out")


def main() -> None:
    console.run(export, "whiten-export")
