"""Which tests share a worker process, which come first, and which files are slow."""

import pytest

LONGEST_FIRST = (
    "tests/clients/",
    "tests/serving/clients/",
    "tests/scale/clusters/",
    "tests/mutants/",
    "tests/parity/test_families.py",
    "tests/parity/test_published.py",
    "tests/export/graph/test_fuse_cuda.py",
    "tests/crashes/test_every_call.py",
    "tests/export/sources/test_adapter.py",
    "tests/evaluation/sweep/",
    "tests/export/",
    "tests/parity/",
    "tests/evaluation/",
    "tests/docs/",
    "tests/edge/",
    "tests/examples/",
    "tests/serving/",
)
"""Files by the time they take; the others follow. Short ones at the end leave no worker without work for long."""

SLOW = (
    *("tests/clients/", "tests/gpu/", "tests/mutants/", "tests/parity/", "tests/evaluation/sweep/test_sweep.py"),
    *("tests/evaluation/sweep/test_layers.py", "tests/evaluation/test_real_checkpoint.py"),
    *("tests/evaluation/tasks/test_classification.py", "tests/evaluation/tasks/test_sts.py"),
    *("tests/export/commands/test_export.py", "tests/export/graph/test_files.py", "tests/export/test_names.py"),
    *("tests/export/graph/test_fuse_cuda.py", "tests/export/test_outputs.py", "tests/export/pipeline/test_fit.py"),
    *("tests/export/pipeline/test_refit.py", "tests/export/pipeline/test_refit_errors.py"),
    *("tests/export/pipeline/test_linked.py", "tests/export/pipeline/test_space.py", "tests/export/writing/"),
    *("tests/export/pipeline/test_int8_vectors.py", "tests/examples/"),
    *("tests/export/pipeline/test_choose_whitening.py", "tests/export/sources/test_adapter.py"),
    *("tests/export/sources/test_adapter_errors.py", "tests/export/sources/test_onnx_encoder.py"),
    *("tests/export/sources/test_sources.py", "tests/export/sources/test_xlm_tokenizer.py"),
    *("tests/tools/test_wheel.py", "tests/edge/", "tests/docs/test_site.py", "tests/docs/test_clouds.py"),
    *("tests/test_support_published.py", "tests/integrations/test_sentence_transformers.py"),
    *("tests/serving/clients/", "tests/serving/server/test_overload.py"),
    *("tests/scale/clusters/", "tests/scale/test_killed.py", "tests/docs/test_howto.py"),
    "tests/crashes/test_every_call.py",
)
"""Files that export, train or install something. With `-m 'not slow'` they are not even imported."""

BY_FAMILY = (
    "tests/parity/test_families.py",
    "tests/parity/test_published.py",
    "tests/export/graph/test_fuse_cuda.py",
)
"""Files whose tests take a family of networks or models as their first parameter, and share nothing between them."""

ALONE = ("tests/crashes/test_every_call.py", "tests/docs/test_howto.py")
"""Files of long tests that start programs of their own, and share little with each other."""

FRAMEWORKS = "tests/clients/test_frameworks.py"
"""File with an environment of its own."""


def is_slow(path: str) -> bool:
    """Return whether a test file, by its path from the root, or a folder of them, is among `SLOW`."""
    return path.startswith(SLOW)


def by_time(item: pytest.Item) -> int:
    """Return the place of a test in the order of `LONGEST_FIRST`."""
    found = (rank for rank, prefix in enumerate(LONGEST_FIRST) if item.nodeid.startswith(prefix))
    return next(found, len(LONGEST_FIRST))


def unit_of(nodeid: str) -> str:
    """Return what a test shares a worker process with: its file, its family of networks, or nothing.

    All tests of other programs that share an environment go to one worker: it installs that while the others work.
    """
    file, _, rest = nodeid.partition("::")
    if file.startswith("tests/clients/") and file != FRAMEWORKS:
        return "clients"
    if file in ALONE:
        return nodeid
    if file in BY_FAMILY and "[" in rest:
        return f"{file} {rest.split('[')[1].rstrip(']').split('-')[0]}"
    return file
