"""Which kind of model a checkpoint is; the packages that a kind needs are imported only for it."""

from importlib.metadata import PackageNotFoundError, version

from whiten_export.pipeline.recipe import Recipe
from whiten_export.sources.base import TokenModel
from whiten_export.sources.checkpoint import Checkpoint
from whiten_runtime.errors import UsageError, WhitenError


def open_model(checkpoint: Checkpoint, recipe: Recipe) -> TokenModel:
    """Read everything about a model but its weights.

    Raises:
        UsageError: the recipe asks for what this kind of model does not have.
        WhitenError: the model cannot be read, or a package that its kind needs is missing.
    """
    (_check_words if checkpoint.kind == "words" else _check_network)(recipe)
    if checkpoint.kind == "words":
        from whiten_export.sources.word_vectors import WordVectors

        return WordVectors(checkpoint, recipe.max_words, recipe.frequencies)
    if checkpoint.kind == "onnx":
        from whiten_export.sources.onnx_encoder import OnnxEncoder

        return OnnxEncoder(checkpoint)
    for package in ("torch", "transformers"):
        try:
            version(package)
        except PackageNotFoundError:
            raise WhitenError(
                f"exporting a PyTorch checkpoint needs {package}; install it with pip install 'whiten[export]'"
            ) from None
    from whiten_export.sources.pytorch import PyTorchModel

    return PyTorchModel(checkpoint, recipe.trust_remote_code, recipe.device)


def _check_words(recipe: Recipe) -> None:
    if recipe.pooling not in ("mean", "sif"):
        raise UsageError(f"pooling {recipe.pooling} picks one token; wanted mean or sif for word vectors")
    if recipe.frequencies is not None and recipe.pooling != "sif":
        raise UsageError("frequencies are for --pooling sif; leave one out or add the other")


def _check_network(recipe: Recipe) -> None:
    if recipe.pooling == "sif":
        raise UsageError(f"pooling sif weighs words by their frequency; '{recipe.model}' is not a file of word vectors")
    for name in ("max_words", "frequencies"):
        if getattr(recipe, name) is not None:
            raise UsageError(f"{name.replace('_', '-')} is for a file of word vectors, which '{recipe.model}' is not")
