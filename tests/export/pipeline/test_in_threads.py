"""Export from several threads of one process."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import transformers

from whiten import Encoder
from whiten_export.export import export_bundle
from whiten_export.plan import plan_export
from whiten_export.recipe import Recipe

LOGGERS = ("torch", "transformers", "sentence_transformers")


def levels() -> list[int]:
    return [logging.getLogger(name).level for name in LOGGERS]


@pytest.mark.slow
def test_exports_in_threads_write_their_bundles_and_leave_the_process_as_it_was(
    checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    recipes = [Recipe(str(checkpoint(family)), layers=(1,), whitening=None) for family in ("bert", "modernbert")]
    export_bundle(recipes[0], tmp_path / "first")  # imports of torch set levels
    before, bars = levels(), transformers.logging.is_progress_bar_enabled()
    with ThreadPoolExecutor(5) as executor:
        exports = [executor.submit(export_bundle, recipe, tmp_path / str(n)) for n, recipe in enumerate(recipes * 2)]
        plans = [executor.submit(plan_export, recipe) for recipe in recipes * 10]
        assert {plan.result().manifest.layers for plan in plans} == {(1,)}
        for export in exports:
            with Encoder(export.result().path) as encoder:
                assert encoder.verify().min_cosine > 0.999999
    assert (levels(), transformers.logging.is_progress_bar_enabled()) == (before, bars)
