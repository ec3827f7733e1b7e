"""Ask whether the hub answers, and turn the exceptions of huggingface_hub into errors of one line."""

import errno
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from whiten_runtime.errors import UsageError, WhitenError

_OF_FILES = frozenset((errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EFBIG, errno.EROFS, errno.EIO))
"""Errors of writing a file, which systems may give without the name of the file."""

_ATTEMPT, _PAUSE, _ALL = 3.0, 1.0, 8.0
"""Seconds of one attempt to reach the hub, between two of them, and of both: the look-up of a name has no bound."""


def hub_answers() -> bool:
    """Return whether the hub answers, within 8 seconds: its client alone would try for half a minute.

    False at once where HF_HUB_OFFLINE is set. A line is logged when the first of two attempts has failed.
    """
    from huggingface_hub import constants, get_session

    if constants.HF_HUB_OFFLINE:
        return False
    answered = threading.Event()

    def ask() -> None:
        try:
            get_session().head(constants.ENDPOINT, timeout=_ATTEMPT)
        except Exception:  # those of the HTTP library, which differs between versions of huggingface_hub
            return
        answered.set()

    end = time.monotonic() + _ALL
    for attempt in range(2):
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(min(_ATTEMPT + 0.5, end - time.monotonic()))
        if answered.is_set():
            return True
        if attempt == 0:
            logging.getLogger("whiten").warning(
                "the hub (%s) does not answer; trying once more. HF_HUB_OFFLINE=1 uses the cache alone",
                constants.ENDPOINT,
            )
            answered.wait(_PAUSE)
    return answered.is_set()


@contextmanager
def hub_errors(hub_id: str, revision: str | None, absent: str) -> Iterator[None]:
    """Turn what huggingface_hub raises in the block into an error of one line."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except WhitenError:
        raise
    except (LocalEntryNotFoundError, OfflineModeIsEnabled):
        raise WhitenError(absent) from None
    except GatedRepoError:
        raise WhitenError(f"'{hub_id}' is gated; accept its terms on the hub and log in with hf auth login") from None
    except RevisionNotFoundError:
        raise UsageError(f"'{hub_id}' has no revision '{revision}'; check the branch, tag or commit") from None
    except RepositoryNotFoundError:
        raise UsageError(
            f"'{hub_id}' does not exist on the hub, or is private; check its name, or log in with hf auth login"
        ) from None
    except HfHubHTTPError as error:
        raise WhitenError(f"the hub refused '{hub_id}': {one_line(error)}; try again later") from error
    except Exception as error:  # those of the HTTP library, which differs between versions of huggingface_hub
        if isinstance(error, OSError) and (error.filename is not None or error.errno in _OF_FILES):
            raise WhitenError(
                f"{error.filename or constants.HF_HUB_CACHE}: {error.strerror}; check space and permissions of the "
                "hub's cache, or set HF_HOME"
            ) from error
        raise WhitenError(
            f"the hub is out of reach, or the transfer of '{hub_id}' broke off ({type(error).__name__}: "
            f"{one_line(error)}); run it again: what has arrived is kept"
        ) from error


def one_line(error: Exception) -> str:
    """Return an exception's message in one line."""
    return " ".join(str(error).split())
