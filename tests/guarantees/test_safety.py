"""S. Safety: no code of a checkpoint runs without consent, and opening a file of somebody else never harms."""

import itertools
import json
import mimetypes
import os
import re
import shutil
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from support.bundles import copy_bundle, edit_graph, edit_manifest, rewrite_file
from support.checkpoints import copy_modules_to
from support.cli import invoke, python
from support.hostile import WAYS, Way, save_good, write_code
from support.hub import Hub
from support.once import once
from whiten import BundleError, Encoder, IntegrityError, UnsafeModelError, VectorWhitener
from whiten_runtime.commands.main import whiten

ROOT = Path(__file__).parents[2]

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


FORMAT = (ROOT / "docs" / "bundle-format.md").read_text("utf-8")
SECURITY = (ROOT / "SECURITY.md").read_text("utf-8")


def of_table(row: str) -> set[str]:
    """Return what a row of the page's table of operators lists."""
    (found,) = re.findall(rf"^\| {re.escape(row)} \| (.*) \|$", FORMAT, re.MULTILINE)
    return set(found.split(", "))


STANDARD = of_table("written by exports") | of_table("further functions of tensors, which other encoders may bring")
STANDARD |= of_table("control flow")
FUSED = of_table("with `target` `cuda` too, of `com.microsoft`")
FUSED_STANDARD = of_table("with `target` `cuda` too, of the standard's domain")
NESTED = {row.removeprefix("in ") for row in of_table("graphs inside nodes")}


@pytest.fixture(scope="module")
def vectors_bundle(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small bundle of vectors, to be changed again and again."""
    return Path(shutil.copytree(golden / "bundle-v1-vectors", tmp_path_factory.mktemp("changed") / "bundle"))


def is_unsafe(bundle: Path, golden: Path, change: Callable[[Any], object], target: str = "cpu") -> bool:
    """Return whether a bundle is refused as unsafe, with a change of its graph; what onnxruntime refuses is not."""
    shutil.copyfile(golden / "bundle-v1-vectors" / "onnx" / "model.onnx", bundle / "onnx" / "model.onnx")
    edit_graph(bundle, change)
    edit_manifest(bundle, lambda manifest: manifest.update(target=target))
    try:
        VectorWhitener(bundle).close()
    except UnsafeModelError:
        return True
    except BundleError:
        return False
    return False


def adding(operator: str, domain: str = "", inputs: int = 1, **attributes: object) -> Callable[[Any], object]:
    node = helper.make_node(operator, ["vectors"] * inputs, ["unused"], domain=domain, **attributes)
    return lambda model: model.graph.node.append(node)


def operators() -> set[tuple[str, str]]:
    """Return domain and name of the operators of ONNX, of the fused ones of the page, and of some other domains."""
    known = {(schema.domain, schema.name) for schema in onnx.defs.get_all_schemas()}
    others = {("com.microsoft", name) for name in (*FUSED, "MatMulNBits", "BeamSearch", "Inverse", "Theirs")}
    return known | others | {("", name) for name in (*FUSED_STANDARD, "Theirs")} | {("theirs", "Add")}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_s2_a_graph_has_the_operators_of_the_page_and_no_other(vectors_bundle: Path, golden: Path, target: str) -> None:
    allowed = {("", name) for name in STANDARD}
    if target == "cuda":
        allowed |= {("com.microsoft", name) for name in FUSED} | {("", name) for name in FUSED_STANDARD}
    additions = [adding(name, domain) for domain, name in allowed]
    assert not is_unsafe(vectors_bundle, golden, lambda model: [add(model) for add in additions], target)
    for domain, name in operators() - allowed:
        assert is_unsafe(vectors_bundle, golden, adding(name, domain), target), (domain, name)


def test_s2_the_page_about_security_says_the_same() -> None:
    text = " ".join(SECURITY.split())
    (control,) = re.findall(r"Of control flow, (.*?) are in it", text)
    assert set(control.split(" and ")) == of_table("control flow")
    (inside,) = re.findall(r"graphs inside nodes, but for those of an? (.*?);", text)
    assert {re.sub(r"\ban? ", "", name) for name in re.split(r",? and of an? |, of an? ", inside)} == NESTED
    (files,) = re.findall(r"code that are no part of a bundle \((.*?) and \[", text)
    assert {Path(name.strip("`")).suffix for name in files.split(", ")} <= set(suffixes())


def test_s2_dropout_may_not_train(vectors_bundle: Path, golden: Path) -> None:
    assert [is_unsafe(vectors_bundle, golden, adding("Dropout", "", count)) for count in (1, 2, 3)] == [
        False,
        False,
        True,
    ]


def graph_inside(*operators: str) -> Any:
    """Return a graph that is inside nodes of these operators, from the inside to the outside."""
    inner = helper.make_node("Identity", ["vectors"], ["of_inner"])
    for operator in operators:
        body = helper.make_graph([inner], operator, [], [])
        name = {"If": "then_branch", "Scan": "body"}.get(operator, "body")
        inner = helper.make_node(operator, ["vectors"], [f"of_{operator}"], **{name: body})
    return inner


def test_s2_graphs_are_inside_the_nodes_of_the_page_only(vectors_bundle: Path, golden: Path) -> None:
    for depth in (1, 2, 3):
        for nested in itertools.product(("If", "Scan", "Identity"), repeat=depth):
            node = graph_inside(*nested)
            outermost = {" inside ".join(nested[start:]) for start in range(depth)}
            unsafe = is_unsafe(vectors_bundle, golden, lambda model, node=node: model.graph.node.append(node))
            assert unsafe is not (outermost <= NESTED), nested


def add_function(model: Any) -> None:
    model.functions.append(
        helper.make_function("theirs", "F", ["x"], ["y"], [helper.make_node("Identity", ["x"], ["y"])], [])
    )


def add_sparse(model: Any) -> None:
    values = helper.make_tensor("sparse", onnx.TensorProto.FLOAT, [1], [1.0])
    indices = helper.make_tensor("indices", onnx.TensorProto.INT64, [1], [0])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, indices, [4]))


def add_training(model: Any) -> None:
    model.training_info.add().algorithm.name = "theirs"


def add_list_of_graphs(model: Any) -> None:
    body = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "inner", [], [])
    model.graph.node.append(helper.make_node("If", ["vectors"], ["unused"], then_branch=[body]))


@pytest.mark.parametrize("add", [add_function, add_sparse, add_training, add_list_of_graphs])
def test_s2_a_graph_has_no_parts_that_the_page_excludes(vectors_bundle: Path, golden: Path, add: Any) -> None:
    assert is_unsafe(vectors_bundle, golden, add)


def storing_at(location: str) -> Callable[[Any], None]:
    """Return a change by which a graph has the numbers of its first initialiser in a file."""

    def change(model: Any) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = onnx.TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)

    return change


OUTSIDE = ("../outside", "/etc/hostname", "..", ".", "a/../../outside", "", "..\\outside", "C:outside", "a/b")
"""Locations that lead out of a folder, on some system."""


@pytest.mark.parametrize("location", [*OUTSIDE, "unlisted", "whiten.json", "model.onnx_data"])
def test_s2_weights_lie_in_a_listed_file_beside_the_graph(golden: Path, tmp_path: Path, location: str) -> None:
    bundle = Path(shutil.copytree(golden / "bundle-v1-vectors", tmp_path / "bundle"))
    rewrite_file(bundle, "onnx/model.onnx_data", bytes(100_000))
    assert is_unsafe(bundle, golden, storing_at(location)) is (location != "model.onnx_data")


def suffixes() -> list[str]:
    """Return the suffixes of weights, graphs and code that the page lists."""
    (text,) = re.findall(r"Others, listed or not, are refused by their suffixes(.*?)\. The folders", FORMAT, re.DOTALL)
    return re.findall(r"`(\.\w+)`", text)


@pytest.mark.parametrize("suffix", suffixes())
def test_s2_a_suffix_of_the_page_is_refused_whoever_lists_it(tiny_bundle: Path, tmp_path: Path, suffix: str) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    for name in (f"a{suffix}", f"onnx/A{suffix.upper()}"):
        for listed in (True, False):
            (bundle / name).write_bytes(b"theirs")
            if listed:
                rewrite_file(bundle, name, b"theirs")
            with pytest.raises(IntegrityError):
                Encoder(bundle)
            (bundle / name).unlink()
            edit_manifest(bundle, lambda manifest, name=name: manifest["files"].pop(name, None))
    Encoder(bundle).close()


def test_s2_no_other_suffix_is_refused(golden: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(golden / "bundle-v1-vectors", tmp_path / "bundle"))
    letters = string.ascii_lowercase + string.digits
    drawn = ("".join(part) for count in (1, 2) for part in itertools.product(letters, repeat=count))
    known = {*drawn, *(ending.removeprefix(".") for ending in mimetypes.types_map)}
    refused = [suffix.removeprefix(".") for suffix in suffixes()]
    for ending in known - set(refused):
        (bundle / f"file.{ending}").touch()
    VectorWhitener(bundle).close()
    for ending in refused:
        assert f"`.{ending}`" in FORMAT


@pytest.mark.parametrize(
    "name", ["whiten.json", "probes.json", "tokenizer.json", "probes.safetensors", "whitening.safetensors"]
)
def test_s2_larger_files_than_the_page_says_are_refused(tiny_bundle: Path, tmp_path: Path, name: str) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    number, unit = re.search(rf"`{re.escape(name)}`(?: and `[\w.]+`)? (\d+) ([GM])iB", FORMAT).groups()
    most = int(number) << {"M": 20, "G": 30}[unit]
    with (bundle / name).open("wb") as file:
        file.truncate(most + 1)
    if name != "whiten.json":
        edit_manifest(bundle, lambda manifest: manifest["files"][name].update(bytes=most + 1))
    with pytest.raises(BundleError, match=f"{most:,}"):
        Encoder(bundle, verify_hashes=False)
