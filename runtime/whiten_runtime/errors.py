"""Define the errors: each message is one line that says what was passed, what was wanted, and what to do."""


class WhitenError(Exception):
    """Raised, as a subclass, for every error that this project reports; command lines exit with `exit_code`."""

    exit_code = 1


class UsageError(WhitenError, ValueError):
    """Raised when an argument or option cannot be used as given."""

    exit_code = 2


class TextError(WhitenError, TypeError):
    """Raised when an item of the texts is not a string, or vectors are not finite numbers."""


class TooLongError(WhitenError, ValueError):
    """Raised when a text has more tokens, or characters, than are read and `truncate=False` forbids truncating it."""


class DataError(WhitenError):
    """Raised when a file of texts, pairs or vectors cannot be read as asked."""


class BundleError(WhitenError):
    """Raised when a bundle is missing, incomplete, or not a bundle, or gives vectors that are not finite."""


class IntegrityError(BundleError):
    """Raised when a file of a bundle differs from its manifest."""


class SignatureError(BundleError):
    """Raised when a bundle is not signed, or not by the author asked for, or is not as its author signed it."""


class UnsafeModelError(BundleError):
    """Raised when a graph uses operators or files that a bundle may not use."""


class MissingPackageError(WhitenError, ImportError):
    """Raised when a required package is not installed; the message names the extra that installs it."""


class ProviderError(WhitenError):
    """Raised when onnxruntime cannot run the model on the provider asked for."""


class ParityError(WhitenError):
    """Raised when vectors differ from the reference by more than the parity gate allows."""
