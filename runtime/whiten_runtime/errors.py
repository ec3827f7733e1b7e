"""Errors a caller can act on: each message is one line saying what was passed, what was wanted, what to do."""


class WhitenError(Exception):
    """Base of every error this project raises on purpose; command lines exit with `exit_code`."""

    exit_code = 1


class UsageError(WhitenError, ValueError):
    """An argument or option cannot be used as given."""

    exit_code = 2


class TextError(WhitenError, TypeError):
    """Something in the texts is not a text."""


class TooLongError(WhitenError, ValueError):
    """A text has more tokens than the model takes and `truncate=False` forbids cutting it."""


class DataError(WhitenError):
    """A file of texts cannot be read as asked."""


class BundleError(WhitenError):
    """A bundle is missing, incomplete, or not one."""


class IntegrityError(BundleError):
    """A file of a bundle is not the one its manifest describes."""


class UnsafeModelError(BundleError):
    """A graph uses operators or reaches for files that a bundle may not."""


class MissingPackageError(WhitenError, ImportError):
    """A package that is needed is not installed; the message names the extra that brings it."""


class ProviderError(WhitenError):
    """onnxruntime cannot run the model on what was asked for."""


class ParityError(WhitenError):
    """Vectors differ from the PyTorch reference by more than the gate allows."""
