"""Open a bundle, or a graph outside a bundle with its tokenizer, for embedding."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path

from whiten_runtime.bundle.bundle import TOKENIZER_FILE, Bundle, open_bundle
from whiten_runtime.bundle.graph import OUTPUT, UNWHITENED_OUTPUT
from whiten_runtime.bundle.manifest import LARGEST_PAIR, SHORT, Manifest, TextMemory
from whiten_runtime.errors import BundleError, UsageError
from whiten_runtime.inference.embedder import Embedder
from whiten_runtime.inference.engine import CpuEngine, Engine, GraphFile
from whiten_runtime.inference.gpu import GpuEngine, check_padding, enables_cuda_graph
from whiten_runtime.inference.options import Prompts
from whiten_runtime.inference.tokenizer import Tokenizer
from whiten_runtime.ort.process import thread_group
from whiten_runtime.ort.session import (
    CUDA_PROVIDER,
    NVIDIA,
    SessionOptions,
    check_opset,
    check_precision,
    import_onnxruntime,
    provider_name,
    telemetry_off,
)


def load_bundle(
    path: Path,
    options: SessionOptions | None = None,
    verify_hashes: bool = True,
    sha256: str | None = None,
    read: Callable[[Bundle], object] | None = None,
) -> tuple[Bundle, Embedder]:
    """Open a bundle's manifest, tokenizer and graph. No vector is computed before all hashes are checked.

    For a call without options, the embedder gives all coordinates, with the default prompt and unchecked.
    Steps that do not depend on one another run in parallel.

    Args:
        path: directory of the bundle.
        options: options of the sessions.
        verify_hashes: compare each file's SHA-256 with the manifest.
        sha256: SHA-256 of the manifest; another bundle is refused. None for whatever bundle is there.
        read: called with the bundle, to read more of its files, while the session is created.

    Raises:
        IntegrityError: a file is not what the manifest says, or the bundle was replaced while it was opened.
        BundleError: it cannot be opened.
    """
    path, settings = path.absolute(), options or SessionOptions()
    with telemetry_off(), thread_group("whiten-open") as start:
        start(import_onnxruntime)  # if it fails, so does the next import, which raises the error
        bundle = open_bundle(path, verify_hashes, verify_weights=False, sha256=sha256)
        manifest = bundle.manifest
        if manifest.input != "text":
            raise BundleError(f"{path}: takes vectors, not texts; open it with whiten.VectorWhitener")
        check_precision(path, manifest.precision, settings.providers)
        check_opset(path, manifest.opset)
        memory = manifest.memory if isinstance(manifest.memory, TextMemory) else None
        settings = _for_length(replace(settings, exact_int8=may_saturate(manifest)), manifest.max_seq_length)
        weights = start(bundle.check_weights) if verify_hashes else None
        tokenizer = start(partial(_read_tokenizer, bundle, read))
        try:
            graph = GraphFile(bundle.model, settings, bundle.graph_files)
            with _naming_newer(manifest, "onnxruntime"):
                engine = _engine_of(graph, settings, manifest.pad_token_id, manifest.layers == (0,), memory)
        finally:
            if weights is not None:
                weights.result()  # an altered file is reported as altered, even if onnxruntime fails on it first
    try:
        most = manifest.max_characters or None
        embedder = Embedder(tokenizer.result(), engine, prompts=Prompts.of(manifest), max_characters=most)
        _check_outputs(bundle, engine)
        bundle.check_unchanged()
        if CUDA_PROVIDER in map(provider_name, settings.providers):
            check_padding(engine, manifest.max_seq_length, manifest.precision)
    except BaseException:
        engine.close()
        raise
    return bundle, embedder


def _read_tokenizer(bundle: Bundle, read: Callable[[Bundle], object] | None) -> Tokenizer:
    """Return the tokenizer, after `read` has read more: in one thread, as several would take more memory at a time."""
    if read is not None:
        read(bundle)
    manifest, content = bundle.manifest, bundle.read(TOKENIZER_FILE)
    with _naming_newer(manifest, "tokenizers"):
        return Tokenizer(bundle.path / TOKENIZER_FILE, manifest.max_seq_length, manifest.truncation_side, content)


@contextmanager
def _naming_newer(manifest: Manifest, package: str) -> Iterator[None]:
    """Say of a file that cannot be opened that a newer version of its library wrote it, if the manifest says so."""
    try:
        yield
    except BundleError as error:
        written, here = manifest.versions.get(package, ""), import_module(package).__version__
        if type(error) is not BundleError or _numbers(written) <= _numbers(here):
            raise
        raise BundleError(
            f"{error}; the bundle was written with {package} {written}, and {here} is installed: install {written} or "
            "newer"
        ) from error


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"[0-9]+", version)[:3]))


def load_unwhitened(
    path: Path, options: SessionOptions | None = None, sha256: str | None = None
) -> tuple[Bundle, Embedder]:
    """Open a bundle for its vectors before whitening and normalisation, as `load_bundle` does.

    Raises:
        UsageError: its graph gives none, as a version before 0.5 wrote it.
    """
    bundle, embedder = load_bundle(path, options, sha256=sha256)
    if bundle.manifest.whitening is None and not bundle.manifest.normalize:
        return bundle, embedder
    if not embedder.engine.gives(UNWHITENED_OUTPUT):
        embedder.close()
        raise UsageError(
            f"{path}: does not give its vectors before whitening, as a version before 0.5 wrote it; export it again"
        )
    prompts, most = Prompts.of(bundle.manifest), embedder.max_characters
    return bundle, Embedder(embedder.tokenizer, embedder.engine, UNWHITENED_OUTPUT, prompts, most)


def open_engine(model: Path, pad_token_id: int, options: SessionOptions | None = None) -> Engine:
    """Open a graph that is not part of a bundle on the device of its first provider."""
    settings = options or SessionOptions()
    return _engine_of(GraphFile(model, settings), settings, pad_token_id)


def _engine_of(
    graph: GraphFile,
    settings: SessionOptions,
    pad_token_id: int,
    lookup: bool = False,
    memory: TextMemory | None = None,
) -> Engine:
    """Open a graph on the device of its first provider; `lookup` says that it has no network."""
    if any(map(enables_cuda_graph, settings.providers)):
        raise UsageError("enable_cuda_graph would replay the first text for every other; pass cuda_graphs=True instead")
    if provider_name(settings.providers[0]) in NVIDIA:
        return GpuEngine(graph, settings, pad_token_id)
    return CpuEngine(graph, settings, pad_token_id, lookup, memory)


def load_graph(
    model: Path,
    tokenizer: Tokenizer,
    pad_token_id: int,
    options: SessionOptions | None = None,
    output: str = OUTPUT,
    prompts: Prompts | None = None,
    max_characters: int | None = None,
) -> Embedder:
    """Open a graph that is not part of a bundle yet, as `load_bundle` opens one that is."""
    settings = _for_length(options or SessionOptions(), tokenizer.max_seq_length)
    check_precision(model, "fp32", settings.providers)
    engine = open_engine(model, pad_token_id, settings)
    return Embedder(tokenizer, engine, output, prompts or Prompts(), max_characters)


def _for_length(settings: SessionOptions, longest: int) -> SessionOptions:
    shared = longest <= SHORT or provider_name(settings.providers[0]) in NVIDIA
    return replace(settings, shared_buffers=shared)


def may_saturate(manifest: Manifest) -> bool:
    """Return whether products of a bundle may saturate in kernels for processors without VNNI."""
    scales = manifest.quantization
    return manifest.precision == "int8" and (scales is None or scales.largest_pair > LARGEST_PAIR)


def _check_outputs(bundle: Bundle, engine: Engine) -> None:
    manifest = bundle.manifest
    if (width := engine.width_of(OUTPUT)) != manifest.dimension:
        raise BundleError(
            f"{bundle.model}: gives {width} dimensions, but the manifest says {manifest.dimension}; "
            "export the model again"
        )
