"""S. Safety: no code of a checkpoint runs without consent, and opening a file of somebody else never harms."""

import hashlib
import itertools
import json
import mimetypes
import os
import re
import resource
import shutil
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from support.bundles import copy_bundle, edit_graph, edit_manifest, rewrite_file
from support.checkpoints import copy_modules_to
from support.cli import invoke, python
from support.hostile import TENSORS, TEXTS, VECTORS, WAYS, Way, change, save_good, write_code
from support.hub import Hub
from support.once import once
from whiten import BundleError, Encoder, IntegrityError, UnsafeModelError, VectorWhitener, WhitenError
from whiten_runtime.commands.console import whiten

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
from whiten_runtime.commands.console import whiten
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
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path, "FETCHED": str(tmp_path / "fetched")}
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
OWN = {("com.microsoft", name) for name in of_table("of `com.microsoft`, onnxruntime's own domain")}
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
    return known | others | OWN | {("", name) for name in (*FUSED_STANDARD, "Theirs")} | {("theirs", "Add")}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
def test_s2_a_graph_has_the_operators_of_the_page_and_no_other(vectors_bundle: Path, golden: Path, target: str) -> None:
    allowed = {("", name) for name in STANDARD} | OWN
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


WRONG: tuple[Any, ...] = (
    *(None, True, -1, 0, 1, 2**31, 2**63, 1e308, "", "x", "\x00", "\x1b[31m", "../outside", "a" * 300),
    *([], {}, [[]], [0], ["x"], {"x": 1}, [None] * 1000),
)
"""Values that a file of somebody else may have in the place of another."""


@st.composite
def changes(draw: st.DrawFn) -> Callable[[Any], Any]:
    """Draw a change of a JSON document: a value somewhere in it is replaced, deleted or repeated."""
    turns = draw(st.lists(st.integers(0, 99), min_size=1, max_size=6))
    kind, value = draw(st.sampled_from(["replace", "delete", "repeat"])), draw(st.sampled_from(WRONG))

    def change(document: Any) -> Any:
        at = document
        for turn in turns:
            keys = list(at) if isinstance(at, dict) else range(len(at))
            if not keys:
                return document
            holder, key = at, keys[turn % len(keys)]
            at = at[key]
            if not isinstance(at, dict | list):
                break
        if kind == "delete":
            del holder[key]
        elif kind == "repeat" and isinstance(holder, list):
            holder.append(at)
        else:
            holder[key] = value
        return document

    return change


def outcome(*arguments: object) -> int:
    """Run a command on a file of somebody else, and return its exit code: it ends, and says one line where it fails."""
    result = invoke(whiten, *arguments)
    failures = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert (result.exit_code, len(failures)) in ((0, 0), (1, 1), (2, 1)), result.stderr
    assert "unexpected" not in result.stderr
    assert "\x1b" not in result.stderr + result.stdout
    return result.exit_code


def opens(bundle: Path) -> bool:
    """Return whether a bundle opens and embeds; it raises nothing but an error of whiten, of one line."""
    try:
        if "vectors" in bundle.name:
            with VectorWhitener(bundle) as whitener:
                whitener.transform(np.zeros((1, 12), np.float32))
        else:
            with Encoder(bundle) as encoder:
                encoder.encode(["a text", ""])
    except WhitenError as error:
        assert "\n" not in str(error)
        return False
    return True


def rewritten(base: Path, folder: Path, name: str, change: Callable[[Any], Any]) -> Path:
    """Copy a bundle with a changed JSON file, whose hash is that of the change."""
    bundle = Path(shutil.copytree(base, folder / base.name, dirs_exist_ok=True))
    document = json.loads((base / name).read_text("utf-8"))
    if name == "whiten.json":
        del document["manifest_sha256"]  # as somebody does who changes it on purpose
        (bundle / name).write_text(json.dumps(change(document)), "utf-8")
    else:
        rewrite_file(bundle, name, json.dumps(change(document)).encode())
    return bundle


@settings(max_examples=25)
@given(change=changes(), name=st.sampled_from(["whiten.json", "tokenizer.json", "probes.json"]))
def test_s3_a_bundle_with_other_settings_is_refused_in_one_line_or_works(
    golden: Path, tmp_path_factory: pytest.TempPathFactory, change: Any, name: str
) -> None:
    with TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as folder:
        bundle = rewritten(golden / "bundle-v1", Path(folder), name, change)
        opens(bundle)
        outcome("info", bundle)


@pytest.mark.slow
@settings(max_examples=250)
@given(
    change=changes(),
    at=st.sampled_from([("bundle-v1", name) for name in ("whiten.json", "tokenizer.json", "probes.json")])
    | st.sampled_from([("bundle-v1-vectors", "whiten.json"), ("bundle-v1-published", "whiten.json")]),
)
def test_s3_commands_end_on_bundles_with_other_settings(
    golden: Path, tmp_path_factory: pytest.TempPathFactory, change: Any, at: tuple[str, str]
) -> None:
    with TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as folder:
        bundle = rewritten(golden / at[0], Path(folder), at[1], change)
        opened, shown = opens(bundle), outcome("info", bundle)
        assert not opened or shown == 0
        outcome("verify", bundle)
        if at[0] != "bundle-v1-vectors":
            outcome("embed", bundle, "a text", "--json")


@pytest.mark.slow
@settings(max_examples=250)
@given(drawn=changes(), turn=st.integers(0, 99), kind=st.sampled_from(["bert", "published", "routes", "adapter"]))
def test_s3_a_plan_ends_on_a_model_with_other_settings(
    tmp_path_factory: pytest.TempPathFactory, drawn: Any, turn: int, kind: str
) -> None:
    base = once(tmp_path_factory, f"good/{kind}", lambda path: save_good(kind, path))
    with TemporaryDirectory(dir=tmp_path_factory.getbasetemp()) as folder:
        model = Path(shutil.copytree(base, Path(folder, "model")))
        files = sorted(path for path in model.rglob("*.json") if path.name != "tokenizer.json")
        path = files[turn % len(files)]
        path.write_text(json.dumps(drawn(json.loads(path.read_text("utf-8")))), "utf-8")
        outcome("export", model, *(("--route", "query") if kind == "routes" else ()), "--plan")


@pytest.mark.parametrize(
    ("kind", "name", "settings"),
    [
        ("bert", "tokenizer_config.json", {"model_max_length": ["x"]}),
        ("bert", "tokenizer_config.json", {"model_max_length": {}}),
        ("published", "tokenizer_config.json", {"unk_token": ""}),
        ("bert", "config.json", {"num_hidden_layers": 2**31}),
        ("bert", "config.json", {"num_hidden_layers": 2**63}),
        ("adapter", "adapter_config.json", {"peft_type": ["LORA"]}),
        ("adapter", "adapter_config.json", {"auto_mapping": 1}),
    ],
)
def test_s3_a_model_with_settings_of_another_kind_is_refused(
    tmp_path_factory: pytest.TempPathFactory, tmp_path: Path, kind: str, name: str, settings: Mapping[str, object]
) -> None:
    good = once(tmp_path_factory, f"good/{kind}", lambda path: save_good(kind, path))
    model = Path(shutil.copytree(good, tmp_path / "model"))
    change(model / name, **settings)
    assert outcome("export", model, "--plan") > 0


@pytest.mark.parametrize("verify_hashes", [True, False])
@pytest.mark.parametrize("name", ["onnx/model.onnx", "tokenizer.json", "whitening.safetensors", "whiten.json"])
def test_s3_a_file_with_other_bytes_is_not_opened(
    tiny_bundle: Path, tmp_path: Path, name: str, verify_hashes: bool
) -> None:
    """Without hashes, at least its size has to be the one that the manifest says."""
    bundle = copy_bundle(tiny_bundle, tmp_path)
    content = (bundle / name).read_bytes()
    others = [content + b" ", content[:-1]]
    if verify_hashes:
        others += [content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]]
    for other in others:
        (bundle / name).write_bytes(other)
        with pytest.raises(BundleError):
            Encoder(bundle, verify_hashes=verify_hashes)


@pytest.mark.parametrize("name", [*OUTSIDE, "/etc/hostname", "whiten.json/..", "\x00", "a\nb", "onnx/../../outside"])
def test_s3_a_manifest_names_no_file_outside_the_folder(golden: Path, tmp_path: Path, name: str) -> None:
    bundle = Path(shutil.copytree(golden / "bundle-v1-vectors", tmp_path / "bundle"))
    (tmp_path / "outside").write_bytes(b"secret")
    record = {"sha256": hashlib.sha256(b"secret").hexdigest(), "bytes": 6}
    edit_manifest(bundle, lambda manifest: manifest["files"].update({name: record}))
    assert not opens(bundle)
    assert outcome("verify", bundle) == 1


def by_lane(files: Mapping[str, Callable[[], bytes]]) -> list[Any]:
    """Return the names of files, those of a long line for the slow lane."""
    large = ("line", "field", "archive")
    return [pytest.param(name, marks=pytest.mark.slow) if name.startswith(large) else name for name in files]


@pytest.mark.parametrize("name", by_lane(TEXTS))
def test_s3_texts_of_somebody_else_are_refused_in_bounded_memory(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(TEXTS[name]())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert outcome("embed", golden / "bundle-v1", "--input", name, "--out", "vectors.npy") == 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20  # in KiB
    assert not list(tmp_path.glob("ran")) + list(tmp_path.glob("vectors*"))


@pytest.mark.parametrize("name", by_lane(VECTORS))
def test_s3_vectors_of_somebody_else_are_refused_in_bounded_memory(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(VECTORS[name]())
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert outcome("transform", golden / "bundle-v1-vectors", "--input", name, "--out", "whitened.npy") > 0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 1 << 20
    assert not list(tmp_path.glob("ran")) + list(tmp_path.glob("whitened*"))


@pytest.mark.parametrize("content", TENSORS.values(), ids=TENSORS)
@pytest.mark.parametrize("name", ["whitening.safetensors", "probes.safetensors"])
def test_s3_arrays_of_somebody_else_are_refused_in_one_line(
    golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes
) -> None:
    monkeypatch.chdir(tmp_path)
    for base in ("bundle-v1", "bundle-v1-vectors"):
        bundle = Path(shutil.copytree(golden / base, tmp_path / base))
        rewrite_file(bundle, name, content)
        opens(bundle)
        assert outcome("verify", bundle) == 1 or name == "whitening.safetensors"
        outcome("refit", bundle, "--whitening", "zca", "--out", tmp_path / "again")
    assert not (tmp_path / "ran").exists()


def test_s3_a_tokenizer_that_adds_many_tokens_is_refused(golden: Path, tmp_path: Path) -> None:
    def change(tokenizer: Any) -> Any:
        added = {"id": "Z", "ids": [1] * 1000, "tokens": ["Z"] * 1000}
        pieces = [{"SpecialToken": {"id": "Z", "type_id": 0}}] * 100_000
        single = [*pieces, {"Sequence": {"id": "A", "type_id": 0}}]
        template = {"type": "TemplateProcessing", "single": single, "pair": [], "special_tokens": {"Z": added}}
        return tokenizer | {"post_processor": template}

    assert not opens(rewritten(golden / "bundle-v1", tmp_path, "tokenizer.json", change))


def test_s3_names_of_somebody_else_do_not_move_the_terminal(golden: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(golden / "bundle-v1", tmp_path / "bundle"))
    edit_manifest(
        bundle, lambda manifest: manifest.update(name="\x1b[31mred\x07\u202e", prompts={"\x1b]0;x\x07": "\x9b"})
    )
    for command in (["info"], ["info", "--json"], ["verify"], ["verify", "--json"]):
        result = invoke(whiten, *command, bundle)
        assert not set(result.stdout + result.stderr) & set("\x1b\x07\x9b\u202e")


_OFFLINE = """
import sys
from pathlib import Path
def audit(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo", "subprocess.Popen", "os.system", "os.exec", "os.fork"):
        Path(sys.argv[2]).write_text(f"{event} {arguments}")
sys.addaudithook(audit)
from whiten import Encoder
with Encoder(sys.argv[1]) as encoder:
    encoder.encode(["a text"] * 100)
    encoder.verify()
"""


@pytest.mark.slow
def test_s3_an_encoder_connects_to_nothing_and_starts_no_process(tiny_bundle: Path, tmp_path: Path) -> None:
    done = python(_OFFLINE, tiny_bundle, tmp_path / "noticed", env=os.environ | {"HF_HUB_OFFLINE": "0"})
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "noticed").exists()
