"""Each row of conformance.jsonl: a request and its answer, as `support.conformance` describes them.

A row may have `settings` of the application, too, and a `bundle`, which is served as "tiny", or `models` by their names
(`of`: the bundle whose vectors are due).
"""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from support.bundles import copy_bundle
from support.conformance import WORDS, Row, check, read_table, send
from whiten import Encoder
from whiten_serving.encoder_queue import EncoderQueue
from whiten_serving.http.app import make_app
from whiten_serving.http.models import Models, ServedModel
from whiten_serving.http.service import Service
from whiten_serving.settings import Settings

PROMPTS = {"query": "query: find what answers ", "document": "passage: ", "around": 'Sum up "{text}" in one word:'}
Bundles = dict[str, tuple[EncoderQueue, Encoder]]


@pytest.fixture(scope="module")
def bundles(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bundles]:
    """The bundles that rows name: on one scheduler, and without one."""
    paths = {"tiny": golden / "bundle-v1", "int8": golden / "bundle-v1-int8"}
    fields = {"prompted": {"prompts": PROMPTS, "default_prompt_name": "document"}, "left": {"truncation_side": "left"}}
    for name, changed in fields.items():
        paths[name] = copy_bundle(golden / "bundle-v1", tmp_path_factory.mktemp(name), **changed)
    with ExitStack() as stack:
        encoders = {name: stack.enter_context(Encoder(path)) for name, path in paths.items()}
        texts, plain = WORDS["SHORT"], encoders["prompted"].encode(WORDS["SHORT"], prompt="")
        for name in PROMPTS:  # else no row of prompts could fail
            assert np.abs(encoders["prompted"].encode(texts, prompt_name=name) - plain).max() > 0.01
        queues = {"tiny": EncoderQueue(paths["tiny"])}
        for name in ("int8", *fields):
            queues[name] = EncoderQueue(paths[name], queues["tiny"].scheduler)
        yield {name: (queues[name], encoders[name]) for name in paths}
        for queue in reversed(queues.values()):
            queue.close()


@pytest.mark.parametrize("row", read_table(Path(__file__).parent / "conformance.jsonl"))
def test_rows(row: Row, bundles: Bundles) -> None:
    names = row.get("models", {"tiny": row.get("bundle", "tiny")})
    models = Models(ServedModel(name, bundles[bundle][0]) for name, bundle in names.items())
    options = {name: tuple(value) if type(value) is list else value for name, value in row.get("settings", {}).items()}
    app = make_app(Service(models, Settings.of(options)))
    check(row, send(app, row), bundles[row.get("of", next(iter(names.values())))][1], app)
