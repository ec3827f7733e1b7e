"""Implement `whiten-export`: one command from a pretrained language model to a bundle."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import click

from whiten_export.pipeline.recipe import Recipe, VectorRecipe
from whiten_export.sources.choice import parse_layers
from whiten_runtime.bundle.manifest import Manifest, Outputs, PoolingMode, Precision, Target, VectorType
from whiten_runtime.bundle.parity import gate_of, in_words
from whiten_runtime.checks import needing
from whiten_runtime.commands import console
from whiten_runtime.commands.console import human_size, json_option, one_line_errors
from whiten_runtime.commands.console_reporter import ConsoleReporter
from whiten_runtime.commands.info import isotropy_in_words
from whiten_runtime.errors import UsageError
from whiten_runtime.files.corpus import BUILTIN_CORPUS
from whiten_whitening.maps import Method, WhiteningSpec
from whiten_whitening.shrinkage import parse_shrinkage

_NOT_FOR_VECTORS = (
    *("layers", "pooling", "corpus", "max_sentences", "all_sentences", "precision", "max_length", "revision"),
    *("trust_remote_code", "device", "max_words", "frequencies", "dev", "outputs", "target", "route", "align_to"),
)


@click.command("whiten-export", context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model", required=False)
@click.option(
    "--from-vectors",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Instead of a model's: whiten vectors from elsewhere (.npy, .parquet, .jsonl). MODEL is then their name.",
)
@click.option(
    "--layers",
    metavar="L,L",
    help="Layers to average, 0 = embeddings, negative from the top. [default: an embedding model's own, else the "
    "catalogue's, else 1 and the last]",
)
@click.option(
    "--pooling",
    metavar="|".join(get_args(PoolingMode)),
    help="Of all tokens the mean, the first (cls), the last, the largest of each coordinate (max), a mean that weighs "
    "later ones more, the sum over the root of their number; half cls and half mean (cls_avg); the network's own "
    "pooler; of words, a mean weighed by frequency without what all sentences share (sif). Several joined by + are "
    "concatenated. [default: the model's own, else mean]",
)
@click.option(
    "--whitening",
    type=click.Choice([*get_args(Method), "auto", "none"]),
    help="Whitening at the end of the graph. auto: decided by what can be measured, with the reason. [default: auto; "
    "none for an embedding model of which neither layers nor a whitening are named; pca with --beta or --shrinkage]",
)
@click.option("--dim", type=int, metavar="K", help="Keep the K leading dimensions (pca, pca-cor, auto). [default: all]")
@click.option(
    "--beta",
    type=float,
    default=1.0,
    show_default=True,
    help="Exponent: 1 whitens, 0 only centres.",
)
@click.option(
    "--shrinkage",
    default="none",
    show_default=True,
    metavar="none|ledoit-wolf|oas|A",
    help="Shrink the covariance, for small corpora; A is a weight from 0 to 1.",
)
@click.option(
    "--dev",
    metavar="FILE",
    help="Pairs with scores (sentence1, sentence2, score) by which --whitening auto decides.",
)
@click.option(
    "--align-to",
    type=click.Path(),
    metavar="OLD",
    help="Bundle of the same model and layers whose stored vectors are to stay usable: the map is turned onto its map.",
)
@click.option(
    "--outputs",
    type=click.Choice(get_args(Outputs)),
    default="whitened",
    show_default=True,
    help="both: the graph gives the vector before whitening too.",
)
@click.option(
    "--corpus",
    multiple=True,
    metavar="FILE",
    help="Sentences to fit on, best like yours: .txt, .jsonl, .csv, .tsv, .parquet (.gz). Repeatable. "
    f"[default: {BUILTIN_CORPUS}]",
)
@click.option("--column", help="Column or key of the sentence in --corpus, or of the vector in --from-vectors.")
@click.option(
    "--max-sentences",
    type=int,
    metavar="N",
    help="Use N sentences, spread over the corpus. [default: as many as move the map]",
)
@click.option(
    "--all-sentences", is_flag=True, help="Use all sentences of the corpus, even if more would not move the map."
)
@click.option(
    "--normalize/--no-normalize",
    default=None,
    help="L2-normalise inside the graph. [default: as an embedding model does that is exported as published, else not]",
)
@click.option(
    "--precision",
    type=click.Choice(get_args(Precision)),
    default="fp32",
    show_default=True,
    help="int8: a quarter of the size, about twice as fast on CPU. fp16: half the size; computed in on CUDA alone.",
)
@click.option(
    "--target",
    type=click.Choice(get_args(Target)),
    default="cpu",
    show_default=True,
    help="cuda: operators fused for NVIDIA's GPUs; with fp16, the network computes in it.",
)
@click.option(
    "--vectors",
    type=click.Choice(get_args(VectorType)),
    default="float32",
    show_default=True,
    help="int8: whole numbers from -127 to 127, one scale a vector; a quarter of the size in a store. Keeps cosines.",
)
@click.option("--max-length", type=int, metavar="N", help="Tokens a text may have. [default: the checkpoint's]")
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The bundle's directory. [default: bundles/NAME-l1-l6 and the like]",
)
@click.option("--force", is_flag=True, help="Replace a bundle that is already there.")
@click.option("--route", metavar="NAME", help="Route of a sentence-transformers Router, such as query or document.")
@click.option("--revision", help="Branch, tag or commit on the hub.")
@click.option("--trust-remote-code", is_flag=True, help="Run Python code that comes with the checkpoint.")
@click.option("--device", default="cpu", show_default=True, help="Where to compute: cpu, cuda or cuda:N.")
@click.option("--max-words", type=int, metavar="N", help="Of a file of word vectors, keep the first N words.")
@click.option("--frequencies", metavar="FILE", help='Words and counts for sif, "word count" lines. [default: by rank]')
@json_option
@one_line_errors
@click.version_option(package_name="whiten")
def export(
    model: str | None,
    from_vectors: Path | None,
    layers: str | None,
    whitening: str | None,
    dim: int | None,
    beta: float,
    shrinkage: str,
    corpus: tuple[str, ...],
    column: str | None,
    normalize: bool | None,
    out: Path | None,
    force: bool,
    as_json: bool,
    **choices: Any,
) -> None:
    """Export MODEL to a bundle: an ONNX graph from token ids to whitened sentence vectors, with tokenizer and proof.

    MODEL is a name of the catalogue (see `whiten models`), a directory written by save_pretrained, by optimum-cli
    export onnx or by peft (a LoRA adapter), a file of word vectors in GloVe's text format, or a hub id.
    """
    started = time.monotonic()
    reporter = ConsoleReporter()
    if from_vectors is not None:
        _refuse(_NOT_FOR_VECTORS, "is for models, not for --from-vectors")
        if whitening in ("none", "auto"):
            why = "would change nothing" if whitening == "none" else "has no model to look at"
            raise UsageError(f"--from-vectors with --whitening {whitening} {why}; name a method")
        spec = WhiteningSpec(whitening or "pca", dim, beta, parse_shrinkage(shrinkage))  # type: ignore[arg-type]
        of_vectors = VectorRecipe(from_vectors, model, column, spec, bool(normalize), choices["vectors"])
        with needing("export"):
            from whiten_export.pipeline.export_vectors import export_vectors
        result = export_vectors(of_vectors, out, force, reporter)
    elif model is None:
        raise UsageError("MODEL is missing; give a name of the catalogue (whiten models), a directory or a hub id")
    else:
        recipe = Recipe.of(
            model,
            layers=None if layers is None else parse_layers(layers),
            whitening=None if whitening == "none" else whitening or "default",
            dim=dim,
            beta=beta,
            shrinkage=parse_shrinkage(shrinkage),
            corpus=corpus or None,
            column=column,
            normalize=normalize,
            **choices,
        )
        with needing("export"):
            from whiten_export.pipeline.export_model import export_bundle
        result = export_bundle(recipe, out, force, reporter)
    seconds = time.monotonic() - started
    console.say_written(_summary(result.path, result.bytes, result.manifest, seconds))
    if as_json:
        console.print_json(
            {
                "bundle": str(result.path),
                "bytes": result.bytes,
                "seconds": round(seconds, 3),
                "warnings": reporter.warnings,
                "manifest": result.manifest,
            }
        )


def _refuse(names: Sequence[str], why: str) -> None:
    context = click.get_current_context()
    for name in names:
        if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT:
            raise UsageError(f"--{name.replace('_', '-')} {why}; leave it out")


def _summary(path: Path, size: int, manifest: Manifest, seconds: float) -> str:
    parity, gate = manifest.parity, gate_of(manifest.precision, manifest.vectors)
    assert parity is not None
    whitening = manifest.whitening
    of_texts = manifest.input == "text"
    verb = "whitened" if whitening and whitening.method != "none" else "common component fitted"
    if whitening and whitening.method != "none" and not whitening.beta:
        verb = "centred"
    what = "sentences" if of_texts else "vectors"
    fitted = f", {verb} on {whitening.n_samples:,} {what}" if whitening else ""
    rounded = " of int8" if manifest.vectors == "int8" else ""
    layers = f" from layers {', '.join(map(str, manifest.layers))}" if of_texts else ""
    if of_texts:
        usage = f'whiten embed {path} "Your text."   or   whiten.Encoder("{path}").encode(texts)'
    else:
        usage = (
            f'whiten transform {path} --input FILE --out FILE   or   whiten.VectorWhitener("{path}").transform(vectors)'
        )
    lines = [
        f"{path} ({human_size(size)}, {seconds:.0f} s)",
        f"  vectors  {manifest.dimension} dimensions{rounded}{layers}{fitted}",
    ]
    if whitening and (measured := isotropy_in_words(whitening)):
        lines.append(f"  isotropy {measured}")
    if manifest.published is not None:
        name = f"{manifest.published.reference}{', before the whitening' if whitening else ''}"
        lines.append(f"  {'model' if whitening else 'equals':<8} {name}: {in_words(manifest.published)}")
    return "\n".join([*lines, f"  parity   {in_words(parity)} (gate: {gate})", f"  use it   {usage}"])


def main() -> None:
    """Run `whiten-export`."""
    console.run(export)
