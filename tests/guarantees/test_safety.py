"""S. Safety: no code of a checkpoint runs without consent, and opening a file of somebody else never harms."""

import json
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from support.checkpoints import copy_modules_to
from support.cli import invoke, python
from support.hostile import WAYS, Way, save_good, write_code
from support.hub import Hub
from support.once import once
from whiten_runtime.commands.main import whiten

Folder = Callable[[str], Path]


@pytest.fixture
def hostile(tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """Return a function that makes the folder of a way to run code, whose module can be imported by its name too."""

    def make(name: str) -> Path:
        way = WAYS[name]
        good = once(tmp_path_factory, f"good/{way.base}", lambda path: save_good(way.base, path))
        folder = Path(shutil.copytree(good, tmp_path / "model"))
        write_code(folder, folder / "ran")
        way.edit(folder)
        copy_modules_to(tmp_path / "modules", monkeypatch)
        monkeypatch.syspath_prepend(str(folder))
        return folder

    return make


def run(folder: Path, way: Way, *options: object) -> tuple[int, bool]:
    """Return the exit code of an export, whose questions are all answered with yes, and whether code ran."""
    target = folder.with_name("bundle")
    chosen = ("--layers", "0", "--whitening", "none") if way.base in ("bert", "adapter") else ()
    result = invoke(whiten, "export", folder, *way.options, *chosen, "--out", target, *options, stdin="y\n" * 9)
    assert target.exists() is (result.exit_code == 0 and "--plan" not in options)
    return result.exit_code, (folder / "ran").exists()


@pytest.mark.parametrize("name", WAYS)
def test_s1_no_code_of_a_checkpoint_runs_in_a_plan(hostile: Folder, name: str) -> None:
    way = WAYS[name]
    assert run(hostile(name), way, "--plan") == (way.plan, False)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if way.base == "static-routes" or way.plan else pytest.mark.slow)
        for name, way in WAYS.items()
    ],
)
def test_s1_no_code_of_a_checkpoint_runs_in_an_export(hostile: Folder, name: str) -> None:
    way = WAYS[name]
    assert run(hostile(name), way) == (way.export, False)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if way.consent])
def test_s1_code_of_a_checkpoint_runs_with_consent(hostile: Folder, name: str) -> None:
    assert run(hostile(name), WAYS[name], "--trust-remote-code") == (0, True)


@pytest.mark.parametrize("name", [name for name, way in WAYS.items() if "pickle" in name and way.plan])
def test_s1_no_consent_lets_a_pickle_run(hostile: Folder, name: str) -> None:
    assert run(hostile(name), WAYS[name], "--trust-remote-code") == (1, False)


@pytest.mark.parametrize("name", ["unknown-network", "module", "route", "route-activation", "route-pickle"])
def test_s1_no_code_of_a_repository_runs(hostile: Folder, name: str, hub: Hub) -> None:
    way, folder = WAYS[name], hostile(name)
    files = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    hub.repositories["org/model"] = files
    for plan in (("--plan",), ()):
        code = invoke(whiten, "export", "org/model", *way.options, *plan, stdin="y\n").exit_code
        assert (code, (folder / "ran").exists()) == (way.plan if plan else way.export, False)
    assert [name for name in hub.fetched if name.endswith(".py")] == []


_KERNELS = """
import os
def get_kernel(repository, *arguments, **options):
    with open(os.environ["FETCHED"], "a") as file:
        print(repository, file=file)
    raise FileNotFoundError(repository)
class Any:
    def __init__(self, *arguments, **options): pass
def decorate(*arguments, **options): return lambda decorated: decorated
def __getattr__(name):
    if name.startswith("__"): raise AttributeError(name)
    return decorate if name.startswith("use_kernel") else Any
"""
"""The package `kernels`, which fetches native code from the hub, as far as transformers imports it."""

_KERNEL = "kernels-community/theirs"
_ATTENTIONS: tuple[Mapping[str, object], ...] = (
    {"attn_implementation": {"": _KERNEL}},
    {"attn_implementation": "paged|" + _KERNEL},
    {"attn_implementation": "flash_attention_2"},
    {"_attn_implementation": _KERNEL + "@main:attention"},
    {"attn_implementation": _KERNEL},
)

_EXPORTS = """
import json, sys
from pathlib import Path
from click.testing import CliRunner
from transformers.utils import is_kernels_available
from whiten_runtime.commands.main import whiten
assert is_kernels_available()
config, options = Path(sys.argv[1], sys.argv[2]), sys.argv[4:]
content = json.loads(config.read_text())
all_settings = json.loads(sys.argv[3])
commands = [["--plan"]] * len(all_settings) + [[]]
for settings, more in zip([*all_settings, all_settings[-1]], commands, strict=True):
    config.write_text(json.dumps(content | settings))
    result = CliRunner().invoke(whiten, ["export", sys.argv[1], *options, *more])
    assert result.exit_code == 0, result.stderr
"""
"""Plans an export with each of some settings, and exports with the last."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("base", "file", "inside"),
    [("bert", "config.json", None), ("published", "config.json", None)]
    + [("published", "sentence_bert_config.json", name) for name in ("model_args", "config_args")],
)
def test_s1_no_kernel_of_the_hub_is_fetched(base: str, file: str, inside: str | None, tmp_path: Path) -> None:
    """A config may name an attention, and transformers fetches that as native code where it makes a network."""
    import transformers

    (tmp_path / "kernels" / "layer").mkdir(parents=True)
    (tmp_path / "kernels" / "__init__.py").write_text(_KERNELS)
    (tmp_path / "kernels" / "layer" / "__init__.py").touch()
    (tmp_path / "kernels" / "layer" / "mode.py").write_text("class Mode: pass")
    lowest = transformers.utils.import_utils.KERNELS_MIN_VERSION
    (tmp_path / f"kernels-{lowest}.dist-info").mkdir()
    described = f"Metadata-Version: 2.1\nName: kernels\nVersion: {lowest}\n"
    (tmp_path / f"kernels-{lowest}.dist-info" / "METADATA").write_text(described)
    folder = save_good(base, tmp_path / "model")
    public = [settings for settings in _ATTENTIONS if "_attn_implementation" not in settings]
    settings = _ATTENTIONS if inside is None else [{inside: one} for one in public]
    layers = ("--layers", "0", "--whitening", "none") if base == "bert" else ()
    environment = os.environ | {"PYTHONPATH": str(tmp_path), "FETCHED": str(tmp_path / "fetched")}
    arguments = folder, file, json.dumps(settings), "--out", tmp_path / "bundle", *layers
    done = python(_EXPORTS, *arguments, env=environment)
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "fetched").exists()
