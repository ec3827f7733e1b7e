"""Implement `whiten info`: describe a manifest as text."""

import msgspec

from whiten_runtime.bundle.bundle import open_bundle
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.bundle.parity import in_words
from whiten_runtime.bundle.space import space_of
from whiten_runtime.commands.console import bundle_argument, command, echo, human_size, print_json, table
from whiten_runtime.hub.locating import locate_bundle
from whiten_runtime.ort.providers import CUDA_PROVIDER


@command(
    quiet=False,
    section="Check",
    examples=(
        "whiten info bundles/minilm",
        "whiten info ORG/NAME --json",
    ),
)
@bundle_argument
def info(bundle: str, as_json: bool) -> None:
    """Show what a bundle is: source, layers, whitening and parity.

    The manifest's own hash and the sizes of the files are checked; the hashes of the files are not.
    """
    path = locate_bundle(bundle)
    manifest = open_bundle(path, verify_hashes=False).manifest
    if as_json:
        print_json(msgspec.structs.replace(manifest, space=space_of(manifest)))
    else:
        echo(describe(manifest))


def describe(manifest: Manifest) -> str:
    source, whitening, parity = manifest.source, manifest.whitening, manifest.parity
    origin = source.checkpoint or "local directory"
    rows = [
        ("model", f"{source.model} ({origin}{f' at {source.revision[:12]}' if source.revision else ''})"),
    ]
    if source.merged_into is not None:
        rows.append(("adapter of", source.merged_into))
    if source.remote_code:
        rows.append(("own code", f"run: {', '.join(source.remote_code)}"))
    if source.ignored_code:
        rows.append(("own code", f"not run: {', '.join(source.ignored_code)}"))
    if manifest.input == "vectors":
        rows.append(("takes", f"vectors of {source.hidden_size} dimensions"))
    else:
        rows.append(("network", f"{source.model_type}, {source.num_hidden_layers} layers of {source.hidden_size}"))
        rows.append(("layers", _pooled(manifest)))
        if manifest.route is not None:
            rows.append(("route", manifest.route))
        if manifest.modules:
            rows.append(("modules", ", ".join(manifest.modules)))
        for name, prompt in manifest.prompts.items():
            default = ", the default" if name == manifest.default_prompt_name else ""
            rows.append(("prompt", f"{name}{default}: {prompt!r}"))
    if whitening is None:
        rows.append(("whitening", "not whitened"))
    else:
        names = ", ".join(corpus.name for corpus in whitening.corpus)
        fitted = f"{whitening.n_samples:,} {'vectors' if manifest.input == 'vectors' else 'sentences'} of {names}"
        if whitening.prompt_name is not msgspec.UNSET:
            fitted += f" with the prompt {whitening.prompt_name}"
        rows.append(("whitening", f"{whitening.description}; rank {whitening.rank}, {fitted}"))
        if (alignment := whitening.alignment) is not None:
            rows.append(("aligned with", f"space {alignment.space}, {alignment.description}"))
        if scores := whitening.isotropy_scores:
            said = (f"{name} {before:.3g} -> {after:.3g}" for name, (before, after) in scores.items())
            rows.append(("isotropy", ", ".join(said)))
    if manifest.choice is not None:
        rows.append(("chosen", manifest.choice.why))
    kind = ", L2-normalised" if manifest.normalize else ""
    rows.append(("vectors", f"{manifest.dimension} dimensions{kind}"))
    rows.append(("space", space_of(manifest)))
    if manifest.input == "text":
        side = ", truncated from the left" if manifest.truncation_side == "left" else ""
        rows.append(("max length", f"{manifest.max_seq_length} tokens{side}"))
        if (memory := manifest.memory) is not msgspec.UNSET:
            rows.append(("memory", f"besides the weights, a text of {memory.in_words(manifest.max_seq_length)}"))
    if manifest.similarity_fn_name != "cosine":
        rows.append(("similarity", manifest.similarity_fn_name))
    if manifest.matryoshka_dimensions:
        rows.append(("may be cut to", f"{', '.join(map(str, manifest.matryoshka_dimensions))} dimensions"))
    target = ", operators fused for CUDA" if manifest.target == "cuda" else ""
    rows.append(("precision", f"{manifest.precision}, opset {manifest.opset}{target}"))
    if (scales := manifest.quantization) is not None:
        kinds = f"{scales.constant_scales} constant scales, {scales.token_scales} per token"
        rows.append(("", f"{kinds}; cosine to float32 on unusual texts {scales.far_min_cosine:.4f} at worst"))
    if parity is not None:
        tokens = "" if parity.max_tokens is msgspec.UNSET else f", texts of up to {parity.max_tokens:,} tokens"
        rows.append(("parity", f"{in_words(parity)}{tokens}, against {parity.reference}"))
        if manifest.published is not None:
            rows.append(("", f"{in_words(manifest.published)}, of that against {manifest.published.reference}"))
        if manifest.target == "cuda":
            verified = parity.provider.startswith(CUDA_PROVIDER)
            rows.append(("", "on CUDA" if verified else "not verified on CUDA: whiten verify BUNDLE --device cuda"))
    total = sum(record.bytes for record in manifest.files.values())
    rows.append(("size", f"{human_size(total)} in {len(manifest.files)} files"))
    rows.append(("made with", ", ".join(f"{name} {version}" for name, version in manifest.versions.items())))
    return table(("bundle", manifest.name), rows)


def _pooled(manifest: Manifest) -> str:
    layers = ", ".join(map(str, manifest.layers))
    if manifest.layer_weights is not None:
        layers += f" (weights {', '.join(f'{weight:.3g}' for weight in manifest.layer_weights)})"
    without = "" if manifest.include_prompt else ", without the prompt's tokens"
    return f"{layers}, {manifest.pooling} pooling{without}"
