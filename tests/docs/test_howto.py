"""Run the commands of the README and of each page as they are written there, and compare what they print.

One shell runs the commands of a page. Names of the model hub lead to small random checkpoints in a cache of the hub;
`minilm` is the real model. Figures that are printed may be others than on the page, words may not. Two things are
changed: ports, so that tests can run side by side; and `whiten`, `whiten-export` and `python` are forks of a process
that has imported torch already, except for the README.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.corpus import sentences
from support.forking import Programs
from support.hidden import hide_torch
from support.once import once, shared_folder
from support.ports import free_port
from whiten import Encoder
from whiten_runtime.bundle.parity import compare
from whiten_runtime.ort.doctor import diagnose
from whiten_runtime.ort.session import CUDA_PROVIDER

ROOT = Path(__file__).parents[2]
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
PORT = re.compile(r"(?:(?<=:)|(?<=--port )|(?<=--listen ))80[08]0\b")
NO_REGISTRY = re.compile(r"npm (?:error|ERR!) (?:code )?(?:ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ENETUNREACH|ETIMEDOUT)\b")
"""What npm prints where its registry is out of reach."""


ELSEWHERE: Mapping[str, str] = {
    "concepts/proof": "the command of the start page",
    "edge": "tests/edge, tests/examples",
    "evaluation": "commands of other pages, on data of their reader",
    "reference/commands": "settings of shells",
    "guides/http": "tests/serving/http/test_guide.py",
    "guides/integrations": "tests/clients",
    "guides/page": "tests/serving/page",
    "guides/search": "tests/examples",
    "guides/services": "tests/serving/test_guide.py",
    "install": "makes an environment, as .ci/run",
    "releasing": "publishes",
    "scale": "tests/scale/test_guide.py",
}
"""Pages whose commands are not run as they are written, and where they are tested or why they are not."""


WITHOUT_TORCH = ("start",)
"""Pages whose readers have no PyTorch, and see what whiten prints then."""

RUN = ("bash", "python")
SECONDS = 600.0
"""Time after which the commands of one guide have failed."""

_FENCE = re.compile(
    r"^(?:(?:\*Not run here: |<!-- not run: )([^\n]+?)(?:\.\*| -->)\n\n)?```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL
)
"""The reason why a block is not run stands before it: for readers, where it says how far the block can be trusted."""
_FIGURE = re.compile(r"\b[0-9a-f]{16,64}\b|-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?(?: (?:B|kB|MB|GB)\b)?")
"""Hashes, figures and sizes, which may differ from those in a guide."""


@dataclass(frozen=True)
class Fence:
    """A fenced block."""

    language: str  # "bash", "python", "text" or another
    content: str  # the lines between the fences
    not_run: str | None = None  # the reason in a line before the block why a test does not run it


def fences_of(text: str) -> list[Fence]:
    """Return the fenced blocks of a page in order."""
    return [Fence(language, content, reason or None) for reason, language, content in _FENCE.findall(text)]


def commands_of(fences: Sequence[Fence]) -> list[Fence]:
    """Return the blocks that are run."""
    return [fence for fence in fences if fence.language in RUN and fence.not_run is None]


def expected_of(fences: Sequence[Fence]) -> Iterator[tuple[int, str]]:
    """Yield the blocks of output, each with the index of the command block, among those that are run, before it."""
    index = -1
    shown = True
    for fence in fences:
        if fence.language in RUN:
            shown = fence.not_run is None
            index += shown
        elif fence.language == "text" and shown and index >= 0:
            yield index, fence.content


def run_fences(
    fences: Sequence[Fence], folder: Path, scratch: Path, variables: Mapping[str, str]
) -> tuple[int, list[str]]:
    """Run blocks in one shell that is in a folder; return its exit code, and what each block printed."""
    scratch.mkdir(parents=True, exist_ok=True)
    script, output = scratch / "script", scratch / "output"
    script.write_text(_script(fences, scratch), "utf-8")
    environment = os.environ | {"PATH": PATH, "PYTHONUNBUFFERED": "1"} | dict(variables)
    with output.open("w") as sink:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", str(script)],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = process.wait(SECONDS)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    _, *printed = output.read_text("utf-8", errors="replace").split(_MARK)
    return code, printed


def missing_lines(expected: str, printed: str) -> list[str]:
    """Return the lines of a block of output that a command did not print, in this order.

    Figures, sizes and ids may be others, blanks more or fewer; … stands for any text.
    """
    lines = map(_without_figures, printed.splitlines())
    wanted = [line for line in expected.splitlines() if line.strip(" …")]
    patterns = [re.escape(_without_figures(line)).replace("…", ".*") for line in wanted]
    found = [any(re.fullmatch(pattern, line) for line in lines) for pattern in patterns]
    return [line for line, is_there in zip(wanted, found, strict=True) if not is_there]


_MARK = "\x1e\n"


def _script(fences: Sequence[Fence], scratch: Path) -> str:
    lines = []
    for index, fence in enumerate(fences):
        lines.append(r"printf '\x1e\n'")
        if fence.language == "python":
            snippet = scratch / f"snippet{index}.py"
            snippet.write_text(fence.content, "utf-8")
            lines.append(f"python '{snippet}'")
        else:
            lines.append(fence.content)
    return "\n".join(lines) + "\n"


def _without_figures(line: str) -> str:
    return _FIGURE.sub("0", " ".join(line.split()))


def pages_with_commands() -> list[str]:
    """Return the names of the pages whose commands are run."""
    pages = {path.relative_to(ROOT / "docs").with_suffix("").as_posix(): path for path in (ROOT / "docs").rglob("*.md")}
    found = {name for name, path in pages.items() if commands_of(fences_of(path.read_text("utf-8")))}
    return sorted(found - ELSEWHERE.keys())


@pytest.fixture
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that exports the real all-MiniLM-L6-v2 by the name of its bundle, fitted on fewer sentences."""
    from whiten_export.export import export_bundle
    from whiten_export.recipe import Recipe

    recipes = {"minilm": {}, "minilm-l0-l1": {"layers": (0, 1), "max_sentences": 2000}}

    def made(name: str) -> Path:
        recipe = Recipe("minilm", **recipes[name])
        return once(tmp_path_factory, f"howto/{name}", lambda path: export_bundle(recipe, path))

    return made


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of caches, which every page finds empty."""
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def programs(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    """Start programs in forks, which have the variables of a page."""
    started = Programs(home / "programs", shared_folder(tmp_path_factory) / "traces", environment(home))
    yield started
    started.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", pages_with_commands())
def test_commands_work_as_they_are_written(
    name: str,
    page_of: Callable[[str], Any],
    bundles: Callable[[str], Path],
    home: Path,
    programs: Programs,
    tmp_path: Path,
) -> None:
    if name == "howto/gpu" and any(check.name == CUDA_PROVIDER and check.works for check in diagnose().providers):
        pytest.skip("the guide shows what is printed where CUDA does not work")
    page = page_of(name)
    for program in page.programs:
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    folder, hub = tmp_path / "folder", home / "hub"
    (folder / "bundles").mkdir(parents=True)
    for cache in (hub, home / "cache"):
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir()
    if page.write is not None:
        page.write(folder, hub)
    for bundle in page.bundles:
        (folder / "bundles" / bundle).symlink_to(bundles(bundle))
    fences = fences_of((ROOT / "docs" / f"{name}.md").read_text("utf-8"))
    commands = on_free_ports([without_installation(fence) for fence in commands_of(fences)])
    variables = environment(home) | {"PATH": f"{programs.path}{os.pathsep}{PATH}"}
    if name in WITHOUT_TORCH:
        variables["PATH"] = PATH
        variables["PYTHONPATH"] = f"{hide_torch(tmp_path)}{os.pathsep}{variables['PYTHONPATH']}"
    code, printed = run_fences(commands, folder, tmp_path / "shell", variables)
    if code and NO_REGISTRY.search(printed[-1]):
        pytest.skip("npm's registry is out of reach")
    assert code == 0, f"{commands[len(printed) - 1].content}\n{printed[-1][-3000:]}"
    for index, expected in expected_of(fences):
        missing = missing_lines(expected, printed[index])
        assert missing == [], f"after\n{commands[index].content}\nwas printed\n{printed[index]}"


def environment(home: Path) -> dict[str, str]:
    """Return the variables that lead to caches in a folder, and away from this machine's own settings."""
    path = os.pathsep.join(
        str(ROOT / home) for home in ("models", "export", "runtime", "whitening", "evaluation", "serving", "scale")
    )
    return {
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(home / "cache"),
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
            ports[found[0]] = str(free_port())
        return ports[found[0]]

    return [replace(fence, content=PORT.sub(free, fence.content)) for fence in commands]


def first_snippet(page: str, language: str) -> str:
    fences = fences_of((ROOT / page).read_text("utf-8"))
    return next(fence.content for fence in fences if fence.language == language)


@pytest.mark.parametrize("language", ["bash", "python"])
def test_the_first_snippets_are_the_readmes(language: str) -> None:
    assert first_snippet("docs/start.md", language) == first_snippet("README.md", language)


def test_the_readme_leads_to_every_page_of_the_documentation() -> None:
    home = (ROOT / "README.md").read_text("utf-8")
    pages = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")} - {"docs/releasing.md"}
    assert sorted(page for page in pages if f"]({page})" not in home) == []


@pytest.mark.filterwarnings("ignore")
def test_the_commands_of_the_readme_run_as_they_are_written(tmp_path: Path, minilm_checkpoint: Path) -> None:
    """The export of the set-up, whose environment the tests have already; the quick start; a server and a request.

    The vectors of the bundle are those of sentence-transformers.
    """
    from sentence_transformers import SentenceTransformer

    set_up, quick_start, server, tests = commands_of(fences_of((ROOT / "README.md").read_text("utf-8")))
    assert tests.content == "python -m pip install -c constraints.txt -e '.[test]' && python -m pytest -n auto\n"
    *installation, export = set_up.content.split(" &&\n")
    assert [line.split()[0] for line in installation] == ["python3", ".", "python"]
    (folder := tmp_path / "folder").mkdir()
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    code, printed = run_fences(
        on_free_ports([replace(set_up, content=export), quick_start, server]),
        folder,
        tmp_path / "shell",
        {
            "COLUMNS": "100",
            "HF_HUB_CACHE": str(tmp_path / "hub"),
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(hide_torch(tmp_path)),
        },
    )
    assert code == 0, printed
    assert "(recorded)" in printed[0]
    assert "bundles/minilm" in printed[0]
    assert '"object":"embedding"' in printed[2]
    shown = next(fence for fence in fences_of((ROOT / "README.md").read_text("utf-8")) if fence.language == "text")
    np.testing.assert_allclose(matrix(printed[1]), matrix(shown.content), atol=0.011)
    texts = [*sentences(200), "", "long " * 600, "Ünïcödé 日本 👩‍👧"]
    theirs = SentenceTransformer(str(minilm_checkpoint), device="cpu").encode(texts, batch_size=8)
    with Encoder(folder / "bundles" / "minilm") as encoder:
        assert compare(encoder.encode(texts), theirs).max_difference < 2e-6


def matrix(text: str) -> list[list[float]]:
    """Return the numbers of an array that numpy printed."""
    return [[float(number) for number in re.findall(r"-?\d+\.\d*", line)] for line in text.splitlines()]
