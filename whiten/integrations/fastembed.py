"""Use a bundle in fastembed, and in what is built on it, such as qdrant-client: `load`, `register`."""

from pathlib import Path
from typing import Any

from whiten_runtime.bundle.bundle import MODEL_FILE, open_bundle
from whiten_runtime.bundle.space import space_of
from whiten_runtime.errors import BundleError, UsageError, needing_package
from whiten_runtime.hub import locate_bundle

with needing_package("fastembed>=0.6"):
    from fastembed import TextEmbedding
    from fastembed.common.model_description import DenseModelDescription, ModelSource, PoolingType
    from fastembed.text.custom_text_embedding import CustomTextEmbedding, PostprocessingConfig


class BundleTextEmbedding(CustomTextEmbedding):  # type: ignore[misc]
    """Runs registered bundles in fastembed, which finds them by their names, and asks no hub for them."""

    SUPPORTED_MODELS: list[DenseModelDescription] = []  # noqa: RUF012 (fastembed's own names and types)
    POSTPROCESSING_MAPPING: dict[str, PostprocessingConfig] = {}  # noqa: RUF012
    bundles: dict[str, tuple[Path, str]] = {}  # noqa: RUF012 (directory and space by the name in small letters)

    def __init__(self, model_name: str, specific_model_path: str | None = None, **options: Any) -> None:
        path = specific_model_path or str(self.bundles[model_name.lower()][0])
        super().__init__(model_name, specific_model_path=path, **options)  # of fastembed's worker processes, too


TextEmbedding.EMBEDDINGS_REGISTRY.append(BundleTextEmbedding)


def register(bundle: str | Path, name: str | None = None) -> str:
    """Make a bundle known to fastembed, as a custom model that pools and normalises nothing.

    `TextEmbedding(name)` then opens it, in this process. fastembed puts no prompt before texts, those for queries and
    documents neither: put them there yourself.

    Args:
        bundle: the bundle's directory, or its name on the hub.
        name: name of the model in fastembed; None for "whiten/" and the bundle's own name.

    Returns:
        The name.

    Raises:
        BundleError: not a bundle for texts, or an incomplete one.
        UsageError: the bundle has a default prompt, which fastembed would leave out; or fastembed knows another model
            by this name.
        MissingPackageError: fastembed is not installed; raised where this module is imported.
    """
    folder = locate_bundle(bundle).absolute()
    manifest = open_bundle(folder).manifest
    if manifest.input != "text":
        raise BundleError(f"{bundle}: takes vectors, not texts, which fastembed has")
    if manifest.default_prompt_name is not None:
        raise UsageError(
            f"{bundle}: has the default prompt '{manifest.default_prompt_name}', which fastembed would leave out; "
            "use whiten's Encoder"
        )
    name = name or f"whiten/{manifest.name}"
    space, known = space_of(manifest), BundleTextEmbedding.bundles.get(name.lower())
    if known is None:
        if any(name.lower() == model["model"].lower() for model in TextEmbedding.list_supported_models()):
            raise UsageError(f"fastembed has another model of the name '{name}'; pass another name")
        description = DenseModelDescription(
            model=name,
            sources=ModelSource(url=folder.as_uri()),
            dim=manifest.dimension,
            model_file=MODEL_FILE,
            description="",
            license="",
            size_in_GB=0,
        )
        BundleTextEmbedding.add_model(description, PoolingType.DISABLED, normalization=False)
    elif known[1] != space:
        raise UsageError(
            f"fastembed knows '{name}' as {known[0]}, whose vectors are of another space than those of {folder}; pass "
            "another name"
        )
    BundleTextEmbedding.bundles[name.lower()] = folder, space
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
    return TextEmbedding(register(bundle, name), **options)
