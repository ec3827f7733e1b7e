"""From a directory to what embeds: steps that do not need one another run side by side."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from whiten_runtime.bundle.bundle import Bundle, open_bundle
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.errors import BundleError
from whiten_runtime.inference.engine import OUTPUT, UNWHITENED_OUTPUT, Engine
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.providers import CUDA_PROVIDER, import_onnxruntime, provider_name
from whiten_runtime.ort.session import SessionOptions


def open_parts(
    path: Path, options: SessionOptions, verify_hashes: bool, value: str = OUTPUT
) -> tuple[Bundle, Tokenizer, Engine]:
    """Open a bundle's manifest, tokenizer and graph. No vector is computed before all hashes are checked.

    Args:
        path: the bundle.
        options: how its session is created.
        verify_hashes: check the SHA-256 of every file.
        value: a value of the graph that is wanted besides its outputs.

    Raises:
        BundleError: not a bundle, or not one for texts, incomplete, altered or unsafe, or not what its manifest says.
        ProviderError: a provider is not available or not active, or CUDA mistakes padding for text.
    """
    with ThreadPoolExecutor(2, "whiten-open") as executor:
        executor.submit(import_onnxruntime)  # if it fails, so will the next import, which tells
        bundle = open_bundle(path, verify_hashes, verify_weights=False)
        manifest = bundle.manifest
        if manifest.input != "text":
            raise BundleError(f"{path}: takes vectors, not texts; open it with whiten_runtime.VectorWhitener")
        weights = executor.submit(bundle.check_weights) if verify_hashes else None
        tokenizer = executor.submit(Tokenizer, bundle.tokenizer, manifest.max_seq_length)
        try:
            engine = Engine(bundle.model, manifest.pad_token_id, options, value)
        finally:
            if weights is not None:
                weights.result()  # what is wrong with an altered file is that it was altered
        opened = bundle, tokenizer.result(), engine
    if (width := engine.width_of(OUTPUT)) != manifest.dimension:
        raise BundleError(
            f"{bundle.model}: gives {width} dimensions, but the manifest says {manifest.dimension}; "
            "export the model again"
        )
    if CUDA_PROVIDER in map(provider_name, options.providers):
        engine.check_padding(manifest.max_seq_length, value)
    if manifest.outputs == "both" and not engine.gives(UNWHITENED_OUTPUT):
        raise BundleError(
            f"{bundle.model}: lacks the output {UNWHITENED_OUTPUT} of its manifest; export the model again"
        )
    return opened


def unwhitened_output(manifest: Manifest) -> str:
    """Name of the value that holds the vector before whitening and normalisation."""
    return UNWHITENED_OUTPUT if manifest.whitening is not None or manifest.normalize else OUTPUT
