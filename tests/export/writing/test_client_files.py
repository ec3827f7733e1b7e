"""Test the model card of a bundle, and what config.json tells transformers.js."""

import json
import re
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from huggingface_hub import ModelCard, metadata_load
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.cli import ok
from whiten import Encoder, VectorWhitener
from whiten_export.bundle_files import model_card, rewrite_transformers_js, with_model_card, write_client_files
from whiten_runtime.bundle.bundle import EXTERNAL_DATA_FILE, file_record, open_bundle
from whiten_runtime.bundle.manifest import Manifest, read_manifest
from whiten_runtime.bundle.parity import GATES
from whiten_runtime.inference.options import Prompts

pytestmark = pytest.mark.slow


def examples(card: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)\n```$", card, re.MULTILINE | re.DOTALL)


def changed(manifest: Manifest, **fields: Any) -> Manifest:
    """Change fields of a manifest, and of its source where they are the source's."""
    own = {name: fields.pop(name) for name in tuple(fields) if hasattr(manifest.source, name)}
    return msgspec.structs.replace(manifest, source=msgspec.structs.replace(manifest.source, **own), **fields)


def python_examples_run(card: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    """Run the examples in Python, and return their variables by their first line."""
    monkeypatch.chdir(folder)
    found: dict[str, dict[str, Any]] = {}
    for code in examples(card, "python"):
        exec(compile(code, "README.md", "exec"), variables := {})
        found[f"{code.splitlines()[0]} {len(found)}"] = variables
    return found


@pytest.fixture(scope="module")
def vectors_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vectors")
    np.save(folder / "api.npy", np.random.default_rng(0).normal(size=(300, 12)).astype(np.float32))
    ok("export", "--from-vectors", folder / "api.npy", "--dim", 6, "--out", folder / "my vectors")
    return folder / "my vectors"


def test_it_is_read_by_the_hubs_program_and_depends_on_the_manifest_alone(fresh_bundle: Path) -> None:
    card, manifest = fresh_bundle / "README.md", open_bundle(fresh_bundle).manifest
    tags = ["whiten", "onnx", "sentence-similarity", "feature-extraction", "whitening"]
    assert metadata_load(card) == {"library_name": "whiten", "pipeline_tag": "sentence-similarity", "tags": tags}
    read = ModelCard.load(card)
    assert (read.data.library_name, read.data.license) == ("whiten", None)
    assert read.text.strip().startswith(f"# {fresh_bundle.name}")
    assert manifest.files["README.md"] == file_record(card)
    assert list(manifest.files) == sorted(manifest.files)
    assert model_card(msgspec.structs.replace(manifest, files={})) == model_card(manifest) == card.read_text("utf-8")


def test_it_says_what_the_bundle_is_and_no_path_of_this_machine(
    fresh_bundle: Path, checkpoint: Callable[[str], Path]
) -> None:
    manifest, card = read_manifest(fresh_bundle), (fresh_bundle / "README.md").read_text("utf-8")
    whitening, parity = manifest.whitening, manifest.parity
    values = (checkpoint("bert").name, "1, 4 of 4", f"{whitening.n_samples:,}", f"{manifest.dimension} dimensions")
    proof = (f"{parity.max_difference:.1e}", str(parity.reference), f"{parity.vectors:,}", str(GATES["fp32"]))
    length = f"{manifest.max_seq_length} tokens"
    missing = [word for word in (*values, length, str(manifest.space), *proof) if word not in card]
    assert missing == []
    for place in (checkpoint("bert").parent, fresh_bundle.parent, Path.home(), Path("/tmp")):
        assert str(place) not in card


def test_the_examples_run(fresh_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = (fresh_bundle / "README.md").read_text("utf-8")
    ran = python_examples_run(card, fresh_bundle.parent, monkeypatch)
    texts = ["A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell."]
    with Encoder(fresh_bundle) as encoder:
        want = encoder.encode(texts)
    found = [np.asarray(variables["vectors"]) for variables in ran.values()]
    assert len(found) == len(ran) == 2
    for vectors in found:
        np.testing.assert_allclose(vectors, want[: len(vectors)], atol=1e-5 * np.abs(want).max())
    (commands,) = examples(card, "bash")
    for command in commands.splitlines():
        ok(*shlex.split(command)[1:])


def test_the_examples_of_vectors_run(vectors_bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = (vectors_bundle / "README.md").read_text("utf-8")
    assert metadata_load(vectors_bundle / "README.md") == {
        "library_name": "whiten",
        "tags": ["whiten", "onnx", "whitening"],
    }
    (tmp_path / vectors_bundle.name).symlink_to(vectors_bundle)
    ran = python_examples_run(card, tmp_path, monkeypatch)
    assert len(ran) == 1
    with VectorWhitener(vectors_bundle) as whitener:
        want = whitener.transform(np.load(tmp_path / "vectors.npy"))
    (commands,) = examples(card, "bash")
    for command in commands.splitlines():
        ok(*shlex.split(command)[1:])
    np.testing.assert_allclose(np.load(tmp_path / "whitened.npy"), want, atol=1e-6)


def test_a_refit_writes_a_new_card(fresh_bundle: Path, corpus_file: Path, tmp_path: Path) -> None:
    ok("refit", fresh_bundle, "--corpus", corpus_file, "--whitening", "zca", "--out", tmp_path / "other")
    card = (tmp_path / "other" / "README.md").read_text("utf-8")
    assert card == model_card(open_bundle(tmp_path / "other").manifest)
    assert "# other\n" in card
    assert "| whitening | full whitening (zca); fitted on" in card


@given(
    name=st.text(min_size=1).filter(str.strip),
    prompt=st.text(),
    licence=st.none() | st.text(min_size=1).filter(str.isprintable),  # YAML reads U+0085 as a blank
    checkpoint=st.none() | st.text() | st.just("org/name"),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
def test_any_name_gives_valid_yaml_and_python(
    golden: Path, tmp_path: Path, name: str, prompt: str, licence: str | None, checkpoint: str | None
) -> None:
    plain = read_manifest(golden / "bundle-v1")
    named = {"name": name, "model": name, "license": licence, "checkpoint": checkpoint}
    manifest = changed(plain, **named, prompts={name: prompt}, default_prompt_name=name)
    written = with_model_card(tmp_path, manifest)
    data = metadata_load(tmp_path / "README.md")
    assert data is not None
    shown = {"base_model": checkpoint if checkpoint == "org/name" else data.get("base_model"), "license": licence}
    assert {key: data.get(key) for key in shown} == shown
    assert (tmp_path / "README.md").stat().st_size == written.files["README.md"].bytes
    card = (tmp_path / "README.md").read_text("utf-8")
    assert "\r" not in card.replace("\r\n", "")
    if "`" not in name and "`" not in prompt:
        python = examples(card, "python")
        assert len(python) == 2
        for code in python:
            compile(code, "README.md", "exec")
        scope: dict[str, Any] = {}
        line = next(line for line in python[0].splitlines() if line.startswith("encoder = "))
        exec(line.replace("Encoder(", "str("), scope)
        assert scope["encoder"] == name


def test_other_kinds_of_bundles(golden: Path) -> None:
    plain = read_manifest(golden / "bundle-v1")
    merged = model_card(changed(plain, merged_into="org/base@" + "1" * 40, checkpoint=None))
    assert "base_model: org/base" in merged
    assert "base_model" not in model_card(changed(plain, merged_into="folder", checkpoint=None))
    one_side = model_card(changed(plain, route="query"))
    assert "| route | `query`; a search needs the bundle of the other route too |" in one_side
    prompted = model_card(changed(plain, prompts={"query": 'q "1": '}, default_prompt_name="query"))
    assert r'| prompt | `query`, the default: `"q \"1\": "` |' in prompted
    assert "| whitening | none |" in model_card(changed(plain, whitening=None))
    assert "which is stated as `mit`" in model_card(changed(plain, license="mit"))
    assert r"a\|b" in model_card(changed(plain, model="a|b"))


WITHOUT = {"dtype": "fp32"}
WITH = WITHOUT | {"use_external_data_format": {"model.onnx": 1}}


def written(root: Path, config: Mapping[str, Any], separate_weights: bool) -> dict[str, Any]:
    (root / "onnx").mkdir(exist_ok=True)
    (root / EXTERNAL_DATA_FILE).unlink(missing_ok=True)
    if separate_weights:
        (root / EXTERNAL_DATA_FILE).touch()
    write_client_files(root, config, 8, 48, Prompts(), "cosine")
    found: dict[str, Any] = json.loads((root / "config.json").read_bytes())
    return found


@pytest.mark.parametrize(("separate_weights", "want"), [(False, WITHOUT), (True, WITH)])
def test_transformers_js_is_told_the_files(tmp_path: Path, separate_weights: bool, want: dict[str, Any]) -> None:
    found = written(tmp_path, {"model_type": "bert"}, separate_weights)
    assert found == {"model_type": "bert", "max_position_embeddings": 48, "transformers.js_config": want}


def test_what_the_source_said_of_its_own_files_is_replaced(tmp_path: Path) -> None:
    """Repositories of the hub that hold ONNX graphs say which of theirs is loaded."""
    source = {"transformers.js_config": {"dtype": "q8", "use_external_data_format": {"model_q4.onnx": 2}}}
    assert written(tmp_path, source, False)["transformers.js_config"] == WITHOUT


@pytest.mark.parametrize("separate_weights", [False, True])
def test_rewriting_gives_the_bytes_that_writing_gives(tmp_path: Path, separate_weights: bool) -> None:
    config = {"model_type": "bert", "layer_norm_eps": 1e-12, "id2label": {"0": "ä"}, "beta": None}
    written(tmp_path, config, separate_weights)
    want = (tmp_path / "config.json").read_bytes()
    written(tmp_path, config, not separate_weights)
    assert (tmp_path / "config.json").read_bytes() != want
    rewrite_transformers_js(tmp_path, separate_weights)
    assert (tmp_path / "config.json").read_bytes() == want


@pytest.mark.parametrize("content", ["[]", "no object", "[" * 100_000])
def test_a_file_that_is_no_object_stays(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content, "utf-8")
    rewrite_transformers_js(tmp_path, True)
    assert (tmp_path / "config.json").read_text("utf-8") == content
