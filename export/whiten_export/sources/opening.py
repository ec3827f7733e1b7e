"""Open a checkpoint by its kind; the packages that a kind needs are imported only for it."""

from importlib.metadata import PackageNotFoundError, version

from whiten_export.sources.base import TokenModel
from whiten_export.sources.checkpoints.checkpoint import Checkpoint
from whiten_export.sources.choice import SourceChoice
from whiten_runtime.bundle.manifest import pooling_modes
from whiten_runtime.errors import UsageError, WhitenError
from whiten_runtime.reporter import Reporter


def open_model(checkpoint: Checkpoint, choice: SourceChoice, report: Reporter | None = None) -> TokenModel:
    """Read everything about a model except its weights."""
    (_check_words if checkpoint.kind == "words" else _check_network)(choice)
    modes = pooling_modes(choice.pooling or "mean")
    if "pooler" in modes and checkpoint.kind != "transformers":
        raise UsageError(f"pooling pooler needs the network's own pooler, which '{choice.model}' does not have")
    if checkpoint.kind == "words":
        from whiten_export.sources.lookup.word_vectors import WordVectors

        return WordVectors(checkpoint, choice.max_words, choice.frequencies, report or Reporter())
    if checkpoint.kind == "static":
        from whiten_export.sources.lookup.static_embedding import StaticEmbedding

        return StaticEmbedding(checkpoint, choice.device)
    if checkpoint.kind == "onnx":
        from whiten_export.sources.onnx_files.onnx_encoder import OnnxEncoder

        return OnnxEncoder(checkpoint)
    needed = ("torch", "transformers", *(("sentence-transformers",) if checkpoint.published else ()))
    for package in needed:
        try:
            version(package)
        except PackageNotFoundError:
            raise WhitenError(
                f"exporting a PyTorch checkpoint needs {package}; install it with pip install 'whiten[export]'"
            ) from None
    from whiten_export.sources.networks.pytorch import PyTorchModel

    return PyTorchModel(checkpoint, choice.trust_remote_code, choice.device)


def _check_words(choice: SourceChoice) -> None:
    if choice.pooling not in ("mean", "sif"):
        raise UsageError(f"pooling {choice.pooling} is not for word vectors; wanted mean or sif")
    if choice.frequencies is not None and choice.pooling != "sif":
        raise UsageError("frequencies are for --pooling sif; leave one out or add the other")


def _check_network(choice: SourceChoice) -> None:
    if choice.pooling == "sif":
        raise UsageError(f"pooling sif weighs words by their frequency; '{choice.model}' is not a file of word vectors")
    for name in ("max_words", "frequencies"):
        if getattr(choice, name) is not None:
            raise UsageError(f"{name.replace('_', '-')} is for a file of word vectors, which '{choice.model}' is not")
