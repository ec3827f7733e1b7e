"""Run the commands of each page as they are written there, one shell for a page, and compare what they print.

Names of the model hub lead to small random checkpoints in a cache of the hub; `minilm` is the real model. Figures that
are printed may be others than in the guide, words may not. One thing is changed: ports, so that tests can run side by
side.
"""

import os
import re
import shutil
import socket
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from support.guide_inputs import BUNDLES, INPUTS, PROGRAMS, ROOT
from support.guides import Fence, commands_of, expected_of, fences_of, missing_lines, run_fences
from support.once import once
from whiten_runtime.ort.doctor import diagnose
from whiten_runtime.ort.providers import CUDA_PROVIDER

pytestmark = pytest.mark.slow

PORT = re.compile(r"\b80[08]0\b")
NO_REGISTRY = re.compile(r"npm (?:error|ERR!) (?:code )?(?:ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ENETUNREACH|ETIMEDOUT)\b")
"""What npm prints where its registry is out of reach."""


@pytest.fixture
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that exports the real all-MiniLM-L6-v2 by the name of its bundle, fitted on fewer sentences."""
    from whiten_export.pipeline.export_model import export_bundle
    from whiten_export.pipeline.recipe import Recipe

    recipes = {"minilm": {}, "minilm-l0-l1": {"layers": (0, 1), "max_sentences": 2000}}

    def made(name: str) -> Path:
        recipe = Recipe.of("minilm", **recipes[name])
        return once(tmp_path_factory, f"howto/{name}", lambda path: export_bundle(recipe, path))

    return made


@pytest.mark.parametrize("name", INPUTS)
def test_commands_work_as_they_are_written(name: str, bundles: Callable[[str], Path], tmp_path: Path) -> None:
    if name == "howto/gpu" and any(check.name == CUDA_PROVIDER and check.works for check in diagnose().providers):
        pytest.skip("the guide shows what is printed where CUDA does not work")
    for program in PROGRAMS.get(name, ()):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder, hub = tmp_path / "folder", tmp_path / "hub"
    (folder / "bundles").mkdir(parents=True)
    hub.mkdir()
    INPUTS[name](folder, hub)
    for bundle in BUNDLES.get(name, ()):
        (folder / "bundles" / bundle).symlink_to(bundles(bundle))
    fences = fences_of((ROOT / "docs" / f"{name}.md").read_text("utf-8"))
    commands = on_free_ports([without_installation(fence) for fence in commands_of(fences)])
    code, printed = run_fences(commands, folder, tmp_path / "shell", environment(hub, tmp_path))
    if code and NO_REGISTRY.search(printed[-1]):
        pytest.skip("npm's registry is out of reach")
    assert code == 0, f"{commands[len(printed) - 1].content}\n{printed[-1][-3000:]}"
    for index, expected in expected_of(fences):
        missing = missing_lines(expected, printed[index])
        assert missing == [], f"after\n{commands[index].content}\nwas printed\n{printed[index]}"


def environment(hub: Path, scratch: Path) -> dict[str, str]:
    """Return the variables that lead to a cache of the hub, and away from this machine's own settings."""
    path = os.pathsep.join(
        str(ROOT / home) for home in ("models", "export", "runtime", "whitening", "evaluation", "serving", "scale")
    )
    return {
        "HF_HUB_CACHE": str(hub),
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(scratch / "cache"),
        "ONNXRUNTIME_NODE_INSTALL": "skip",
        "PYTHONPATH": path,
    }


def without_installation(fence: Fence) -> Fence:
    """Return the last command of a set-up that makes an environment first, which the tests have already."""
    return replace(fence, content=fence.content.split(" &&\n")[-1]) if "-m venv" in fence.content else fence


def on_free_ports(commands: Sequence[Fence]) -> list[Fence]:
    """Return commands with free ports in place of 8080 and 8000."""
    ports: dict[str, str] = {}

    def free(found: re.Match[str]) -> str:
        if found[0] not in ports:
            with socket.socket() as sock:
                sock.bind(("127.0.0.1", 0))
                ports[found[0]] = str(sock.getsockname()[1])
        return ports[found[0]]

    return [replace(fence, content=PORT.sub(free, fence.content)) for fence in commands]
