"""Which tests share a worker process, and which come first."""

import pytest
from xdist.scheduler import LoadScopeScheduling

LONGEST_FIRST = (
    "tests/clients/",
    "tests/parity/test_families.py",
    "tests/export/graph/test_fuse_cuda.py",
    "tests/export/sources/test_adapter.py",
    "tests/evaluation/sweep/",
    "tests/export/",
    "tests/parity/",
    "tests/evaluation/",
)
"""Files by the time they take; the others follow. Short ones at the end leave no worker without work for long."""

BY_FAMILY = ("tests/parity/test_families.py", "tests/export/graph/test_fuse_cuda.py")
"""Files whose tests take the family of networks as their first parameter, and share nothing between families."""


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives the tests of a file to one worker, for they share fixtures; those of a family of networks as a unit.

    All tests of other programs go to one worker: it installs their environment while the others work.
    """

    def _split_scope(self, nodeid: str) -> str:
        file, _, rest = nodeid.partition("::")
        if file.startswith("tests/clients/"):
            return "clients"
        if file in BY_FAMILY and "[" in rest:
            return f"{file} {rest.split('[')[1].rstrip(']').split('-')[0]}"
        return file


def by_time(item: pytest.Item) -> int:
    """Return the place of a test in the order of `LONGEST_FIRST`."""
    found = (rank for rank, prefix in enumerate(LONGEST_FIRST) if item.nodeid.startswith(prefix))
    return next(found, len(LONGEST_FIRST))
