"""Use a bundle in fastembed, and in what is built on it, such as qdrant-client: `load`, `register`."""

from pathlib import Path
from typing import Any

from whiten_runtime.bundle.bundle import MODEL_FILE, open_bundle
from whiten_runtime.bundle.manifest import Manifest
from whiten_runtime.errors import BundleError, UsageError, needing_package

with needing_package("fastembed>=0.6"):
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType


def register(bundle: str | Path, name: str | None = None) -> str:
    """Make a bundle known to fastembed, as a custom model that pools and normalises nothing.

    `TextEmbedding(name, specific_model_path=bundle)` then opens it. fastembed puts no prompt before texts, those for
    queries and documents neither: put them there yourself.

    Args:
        bundle: the bundle's directory.
        name: name of the model in fastembed; None for "whiten/" and the bundle's own name.

    Returns:
        The name.

    Raises:
        BundleError: not a bundle for texts, or an incomplete one.
        UsageError: the bundle has a default prompt, which fastembed would leave out; or fastembed knows a model with
            another number of dimensions by this name.
        MissingPackageError: fastembed is not installed; raised where this module is imported.
    """
    manifest = open_bundle(bundle).manifest
    if manifest.input != "text":
        raise BundleError(f"{bundle}: takes vectors, not texts, which fastembed has")
    if manifest.default_prompt_name is not None:
        raise UsageError(
            f"{bundle}: has the default prompt '{manifest.default_prompt_name}', which fastembed would leave out; "
            "use whiten's Encoder"
        )
    name = name or f"whiten/{manifest.name}"
    if not _is_known(name, manifest):
        TextEmbedding.add_custom_model(
            model=name,
            pooling=PoolingType.DISABLED,
            normalization=False,
            sources=ModelSource(hf=name),
            dim=manifest.dimension,
            model_file=MODEL_FILE,
        )
    return name


def load(bundle: str | Path, name: str | None = None, **options: Any) -> TextEmbedding:
    """Register a bundle and open it.

    Args:
        bundle: the bundle's directory.
        name: name of the model in fastembed, as in `register`.
        options: options of fastembed's `TextEmbedding`, such as `threads`.

    Raises:
        WhitenError: as in `register`.
    """
    return TextEmbedding(register(bundle, name), specific_model_path=str(bundle), **options)


def _is_known(name: str, manifest: Manifest) -> bool:
    for known in TextEmbedding.list_supported_models():
        if known["model"].lower() == name.lower():
            if known["dim"] != manifest.dimension:
                raise UsageError(
                    f"fastembed knows a model of {known['dim']} dimensions as {known['model']}; pass another name"
                )
            return True
    return False
