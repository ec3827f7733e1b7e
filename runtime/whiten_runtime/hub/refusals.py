"""Turn the exceptions of huggingface_hub into errors of one line."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from whiten_runtime.errors import UsageError, WhitenError


@contextmanager
def hub_errors(hub_id: str, revision: str | None, absent: str) -> Iterator[None]:
    """Turn what huggingface_hub raises in the block into an error of one line.

    Args:
        hub_id: id on the hub, ORG/NAME.
        revision: branch, tag or commit, for the message; None for the main branch.
        absent: message for a repository that is not in the cache while the hub is out of reach.

    Raises:
        UsageError: no such repository or revision.
        WhitenError: the hub cannot be reached, breaks off, or refuses.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    logger = logging.getLogger("huggingface_hub")  # tells of every attempt; the error below tells of the last
    level = logger.level
    logger.setLevel(logging.ERROR)
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
        if isinstance(error, OSError) and error.filename is not None:  # of a file: no space, no permission
            raise WhitenError(
                f"{error.filename}: {error.strerror}; check space and permissions of the hub's cache, or set HF_HOME"
            ) from error
        raise WhitenError(
            f"the hub is out of reach, or the transfer of '{hub_id}' broke off ({type(error).__name__}: "
            f"{one_line(error)}); run it again: what has arrived is kept"
        ) from error
    finally:
        logger.setLevel(level)


def one_line(error: Exception) -> str:
    """Return an exception's message in one line."""
    return " ".join(str(error).split())
