"""Implement `whiten info`, `whiten verify` and `whiten push`: describe, check and upload a bundle."""

from pathlib import Path

import click
import msgspec

from whiten_runtime.bundle.bundle import changed_client_files, open_bundle
from whiten_runtime.bundle.manifest import Manifest, read_manifest
from whiten_runtime.bundle.parity import in_words
from whiten_runtime.bundle.space import space_of
from whiten_runtime.commands.console import (
    bundle_argument,
    command,
    device_option,
    echo,
    heading,
    human_size,
    option,
    print_json,
    say,
    table,
)
from whiten_runtime.hub import locate_bundle, parse_repository, push_bundle
from whiten_runtime.ort.session import CUDA_PROVIDER, Provider


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
        if source.left_out:
            rows.append(("left out", ", ".join(source.left_out)))
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
        most = f", of {manifest.max_characters:,} characters" if manifest.max_characters else ""
        rows.append(("max length", f"{manifest.max_seq_length} tokens{most}{side}"))
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


@command(
    section="Check",
    examples=(
        "whiten verify bundles/minilm",
        "whiten verify ORG/NAME --json",
    ),
)
@bundle_argument
@heading("Execution")
@device_option
@option("--quick", is_flag=True, help="Leave out test texts of more than 1,024 tokens, which take seconds.")
def verify(bundle: str, providers: tuple[Provider, ...], quick: bool, as_json: bool) -> None:
    """Check that a bundle gives the original model's vectors on this machine.

    It compares the hashes of the files, embeds the bundle's test texts, and compares the vectors with those that the
    reference, such as PyTorch, gave at export. The exit code is 1 if they differ by more than the gate allows. Files
    that only other programs read may differ from the manifest; they are named.

    This detects damage, not forgery: whoever can write to the bundle can rewrite hashes and probes too. A signature
    tells who made the bundle: model_signing, a program of its own, signs and checks the folder.

    The result goes to stderr. With --json, a document is printed on stdout once the vectors were compared, whether they
    agree or not. If an earlier check fails, such as that of the hashes, stdout stays empty and the exit code is 1.
    """
    from whiten_runtime.encoder import Encoder
    from whiten_runtime.opened_bundle import proof_of
    from whiten_runtime.vector_whitener import VectorWhitener

    path = locate_bundle(bundle)
    opened = VectorWhitener if read_manifest(path).input == "vectors" else Encoder
    with opened(path, providers or None) as encoder:
        proof = proof_of(encoder, quick)
        changed = changed_client_files(path, encoder.manifest.files)
    if changed:
        names = ", ".join(changed)
        say(f"{bundle}: of files that only other programs read, these differ from its manifest: {names}")
    if as_json:
        report = {"passed": proof.passed, "provider": proof.provider, "agreement": proof.agreement, "gate": proof.gate}
        print_json(report | {"changed_client_files": changed})
    proof.check(bundle)
    say(f"{bundle}: equal to {proof.reference} on {proof.provider}: {proof.agreement} (gate: {proof.gate})")
    say(f"{bundle}: this detects damage, not forgery; a signature tells who made the bundle (model_signing verify)")


@command(
    section="Share",
    examples=(
        "whiten push bundles/minilm ORG/NAME",
        "whiten push bundles/minilm ORG/NAME@v2 --private",
    ),
)
@click.argument("bundle", type=click.Path(path_type=Path))
@click.argument("repository", metavar="ORG/NAME[@BRANCH]")
@heading("Repository")
@option("--private", is_flag=True, help="Create a private repository, and refuse a repository that is public.")
def push(
    bundle: Path,
    repository: str,
    private: bool,
    as_json: bool,
) -> None:
    """Upload a bundle to the model hub.

    BUNDLE is a directory, ORG/NAME a repository; without @BRANCH, its main branch is meant. Repository and branch are
    created if need be. The address of the commit is printed. The hashes of the files that whiten reads are checked
    first. Encoder("ORG/NAME") and every command that takes a bundle then open it from there. The token is that of
    hf auth login, or of HF_TOKEN.
    """
    done = push_bundle(bundle, parse_repository(repository), private)
    say(f"uploaded {len(done.files)} files ({human_size(done.bytes)}) to {repository}")
    if done.removed:
        say(f"removed files of an older bundle: {', '.join(done.removed)}")
    if as_json:
        print_json(done)
    else:
        echo(done.url)
