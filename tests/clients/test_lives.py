"""Test what becomes of each adapter over its life: used, stored, loaded, moved, and after its bundle was replaced."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from support.bundles import copy_bundle
from support.corpus import sentences
from support.once import installed_environment
from whiten import Encoder

pytestmark = [pytest.mark.slow, pytest.mark.clients]

HERE = Path(__file__).parent
WITH_WHITEN = os.pathsep.join(str(HERE.parents[1] / name) for name in ("", "runtime", "whitening"))
PROMPTS = {"query": "query: ", "document": "passage: "}

UNSTORED = {"fastembed", "mteb", "sentence_transformers"}
"""They store no name of a bundle: the first two nothing at all, the last a copy of it."""

NAMES = [
    *("bertopic", "chroma", "fastembed", "haystack", "keybert", "langchain", "llama_index", "mteb"),
    *("sentence_transformers", "sklearn", "spacy", "txtai"),
]

HOW = {
    "bertopic": "pass a new BundleBackend to the framework",
    "chroma": "collection.modify(configuration=",
    "haystack": "correct `bundle` of this component in the stored pipeline",
    "keybert": "pass a new BundleBackend to the framework",
    "langchain": "make new BundleEmbeddings(PATH)",
    "llama_index": 'from_dict(stored | {"bundle": PATH})',
    "sklearn": "set_params(bundle=PATH)",
    "spacy": "spacy.load(FOLDER, config=",
    "txtai": 'load(FOLDER, config={"path": PATH})',
}
"""What the error of a stored adapter says that one can do."""


@pytest.fixture
def folder(tiny_bundle: Path, tmp_path: Path) -> Path:
    for name in ("one", "two"):
        changed: dict[str, Any] = {"prompts": PROMPTS} if name == "one" else {"prompts": {"query": "ask: "}}
        copy_bundle(tiny_bundle, tmp_path / "made", **changed).rename(tmp_path / name)
    (tmp_path / "texts.json").write_text(json.dumps([*sentences(20), "", "Ünïcödé 日本"]), "utf-8")
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
def test_the_life_of_an_adapter(name: str, folder: Path) -> None:
    environment = ("clients", "requirements.txt") if name == "mteb" else ("frameworks", "requirements-frameworks.txt")
    python = installed_environment(environment[0], HERE / environment[1])
    settings = {"PYTHONPATH": WITH_WHITEN, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

    command = [python, HERE / "lives.py", name, folder]
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=log, text=True, env=os.environ | settings) as process,
    ):
        check_life(name, folder, partial(live, process, folder / "log"))


def live(process: "subprocess.Popen[str]", log: Path, steps: str) -> str:
    """Take steps in a process of their own, and return the last line that it printed."""
    assert process.stdin is not None
    assert process.stdout is not None
    print(steps, file=process.stdin, flush=True)
    printed = []
    while (line := process.stdout.readline()) and not line.startswith("ended "):
        printed.append(line.strip())
    assert line == "ended 0\n", "\n".join(printed)[-2000:] + log.read_text()[-4000:]
    return printed[-1] if printed else ""


def check_life(name: str, folder: Path, live: Callable[[str], str]) -> None:
    live("made")
    live("loaded")
    with Encoder(folder / "one") as one, Encoder(folder / "two") as two:
        space, other = one.space, two.space
    (folder / "one").rename(folder / "other")
    gone = json.loads(live("refused"))
    shutil.copytree(folder / "two", folder / "one")
    replaced = json.loads(live("refused,moved"))
    if name in UNSTORED:
        assert replaced is None
    else:
        assert f"{folder / 'one'}' does not exist" in gone
        assert name == "spacy" or HOW[name] in gone
        for words in (space, other, HOW[name], "else embed again"):
            assert words in replaced
