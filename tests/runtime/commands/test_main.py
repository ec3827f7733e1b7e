"""Test `whiten` as scripts and people call it."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest

from support.bundles import contained, copy_bundle, rewrite_file, stored_fields
from support.cli import invoke, refused
from whiten import Encoder
from whiten_runtime.commands.console import whiten

run = partial(invoke, whiten)


def test_embed_prints_a_line_for_each_text(tiny_bundle: Path, tiny: Encoder) -> None:
    result = run("embed", tiny_bundle, "one text", "")
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["text"] for row in rows] == ["one text", ""]
    np.testing.assert_allclose([row["embedding"] for row in rows], tiny.encode(["one text", ""]), rtol=1e-4, atol=1e-5)
    assert (result.exit_code, result.stderr) == (0, "")


@pytest.mark.parametrize("arguments", [["-"], ["--input", "-"]])
def test_embed_reads_standard_input(tiny_bundle: Path, arguments: list[str]) -> None:
    result = run("embed", tiny_bundle, *arguments, stdin="first line\n\nthird line\n")
    assert [json.loads(line)["text"] for line in result.stdout.splitlines()] == ["first line", "", "third line"]


@pytest.mark.parametrize("kind", ["jsonl", "parquet", None])
def test_texts_with_lone_surrogates_are_written(tiny_bundle: Path, tmp_path: Path, kind: str | None) -> None:
    out = () if kind is None else ("--out", tmp_path / f"out.{kind}")
    (tmp_path / "in.jsonl").write_text('"half \\ud83d"\n"whole"\n', "utf-8")
    result = run("embed", tiny_bundle, "--input", tmp_path / "in.jsonl", *out)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("kind", ["npy", "parquet", "jsonl"])
def test_embed_writes_files(tiny_bundle: Path, tiny: Encoder, tmp_path: Path, kind: str) -> None:
    texts = ["a", "longer text", "", "日本"]
    source, out = tmp_path / "in.jsonl", tmp_path / f"out.{kind}"
    source.write_text("\n".join(json.dumps({"id": 1, "body": text}) for text in texts), "utf-8")
    result = run(
        "embed", tiny_bundle, "--input", source, "--column", "body", "--out", out, "--json", "--normalize",
        "--truncate-dim", 8,
    )  # fmt: skip
    want = {"texts": 4, "dimension": 8, "space": tiny.space, "truncated": 0, "out": str(out)}
    assert json.loads(result.stdout) == want
    if kind == "npy":
        vectors = np.load(out)
    elif kind == "parquet":
        table = pyarrow.parquet.read_table(out)
        assert table["text"].to_pylist() == texts
        vectors = np.array(table["embedding"].to_pylist(), np.float32)
    else:
        lines = out.read_text("utf-8").splitlines()[1:]
        vectors = np.array([json.loads(line)["embedding"] for line in lines], np.float32)
    np.testing.assert_allclose(
        vectors, tiny.encode(texts, normalize_embeddings=True, truncate_dim=8), rtol=1e-4, atol=1e-5
    )
    sidecar = ["out.npy.json"] if kind == "npy" else []
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["in.jsonl", out.name, *sidecar])


def test_embed_reports_truncated_texts(tiny_bundle: Path) -> None:
    result = run("embed", tiny_bundle, "short", "long " * 99, "--json")
    summary = json.loads(result.stdout)
    assert (summary["texts"], summary["truncated"], len(summary["embeddings"])) == (2, 1, 2)
    assert "1 of 2 texts were cut: at most 48 tokens of a text are read\n" in result.stderr


def test_info_and_verify(tiny_bundle: Path) -> None:
    manifest = stored_fields(tiny_bundle)
    assert contained(manifest, json.loads(run("info", tiny_bundle, "--json").stdout))
    words = run("info", tiny_bundle).stdout
    assert "bert, 4 layers of 32" in words
    assert "pca" in words
    result = run("verify", tiny_bundle)
    assert (result.exit_code, result.stdout) == (0, "")
    assert f"equal to torch {manifest['versions']['torch']} on CPUExecutionProvider" in result.stderr
    report = json.loads(run("verify", tiny_bundle, "--json").stdout)
    assert report["passed"] is True
    assert report["agreement"]["min_cosine"] > 0.999999


def test_verify_names_the_files_that_another_program_has_rewritten(tiny_bundle: Path, tmp_path: Path) -> None:
    copy = copy_bundle(tiny_bundle, tmp_path)
    assert "differ from its manifest" not in run("verify", copy).stderr
    (copy / "modules.json").write_text("[]")
    (copy / "README.md").write_text("# A card")
    result = run("verify", copy, "--json")
    assert result.exit_code == 0
    assert "only other programs read, these differ from its manifest: README.md, modules.json\n" in result.stderr
    assert json.loads(result.stdout)["changed_client_files"] == ["README.md", "modules.json"]


def test_verify_fails_on_other_vectors(tiny_bundle: Path, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save

    copy = copy_bundle(tiny_bundle, tmp_path)
    vectors = load_file(copy / "probes.safetensors")
    vectors["embeddings"] *= 1.001
    rewrite_file(copy, "probes.safetensors", save(vectors))
    result = run("verify", copy, "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["passed"] is False
    assert result.stderr.startswith("error: ")
    (copy / "probes.safetensors").write_bytes(b"altered")
    result = run("verify", copy, "--json")
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (1, "", 1)  # nothing was compared


def test_models_lists_the_catalogue() -> None:
    words = run("models", "--all").stdout
    rows = json.loads(run("models", "--all", "--json").stdout)
    assert {"bert-base", "roberta-base", "distilbert", "labse", "minilm"} <= {row["name"] for row in rows}
    assert all(row["checkpoint"] in words for row in rows)


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        ([], 2, "embed"),
        (["text", "--input", "x.txt"], 2, "--input"),
        (["text", "--column", "x"], 2, "--input"),
        (["--input", "-", "--column", "x"], 2, "'x'"),
        (["text", "-"], 2, "-"),
        (["--input", "nowhere.txt"], 2, "'nowhere.txt'"),
        (["text", "--out", "x.zip"], 2, "x.zip"),
        (["text", "--out", "no/such/x.npy"], 2, "no/such"),
        (["text", "--force"], 2, "--out"),
        (["text", "--truncate-dim", "33"], 2, "from 1 to 32"),
        (["text", "--device", "CUDAExecutionProvider"], 1, "CUDAExecutionProvider"),
    ],
)
def test_errors_are_one_line(tiny_bundle: Path, arguments: list[str], code: int, named: str) -> None:
    assert named in refused("embed", tiny_bundle, *arguments, code=code)


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (("--json", "info", "x"), "whiten info --json"),
        (("-q", "embed", "x"), "whiten embed -q"),
        (("--json", "eval", "retrieval"), "whiten eval retrieval --json"),
        (("eval", "--json", "retrieval", "x"), "whiten eval retrieval --json"),
        (("--json", "no-such"), None),
        (("--no-such", "info", "x"), None),
    ],
)
def test_an_option_before_its_command_is_told_where_it_belongs(arguments: tuple[str, ...], place: str | None) -> None:
    result = invoke(whiten, *arguments)
    assert result.exit_code == 2
    assert (place in result.stderr) if place else ("No such" in result.stderr)


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    from whiten import BundleError

    with pytest.raises(BundleError):
        run("--debug", "info", tmp_path)


def test_the_commands_are_installed(tiny_bundle: Path) -> None:
    folder = Path(sys.executable).parent
    done = subprocess.run([folder / "whiten", "embed", tiny_bundle, "text"], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["text"] == "text"
    version = subprocess.run([folder / "whiten-export", "--version"], capture_output=True, text=True, check=True)
    assert version.stdout.startswith("whiten-export, version ")


def test_embed_does_not_replace_its_own_input(tiny_bundle: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.jsonl"
    texts.write_text('"a text"\n', "utf-8")
    assert "is --input too and would be replaced" in refused("embed", tiny_bundle, "--input", texts, "--out", texts)
    assert texts.read_text("utf-8") == '"a text"\n'
    assert run("embed", tiny_bundle, "--input", texts, "--out", tmp_path / "new.jsonl").exit_code == 0
