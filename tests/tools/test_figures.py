"""The figures in README and guides are those of benchmarks/readme.json, and one that is edited by hand is found."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from benchmarks.all import __main__ as command
from benchmarks.all.pages import BLOCK, TABLES, fill_blocks, fill_sentence, pattern, rewritten
from benchmarks.all.statements import SENTENCES
from benchmarks.all.tables import blocks, how, speed_table
from benchmarks.all.values import values

ROOT = Path(__file__).parents[2]
ENGINES = ("whiten-fp32", "whiten-int8", "st-onnx", "st-onnx-int8", "openvino-fp32", "ctranslate2-fp32")
TEXTS = {"short": 1000, "mixed": 150, "one": 200}


def result(*speeds: float) -> dict[str, Any]:
    """Return what `benchmarks.peers` keeps of a model, of one round for each speed of whiten-fp32."""
    names = (*ENGINES, "ctranslate2-int8", "whiten-layer0", "model2vec-layer0", "fastembed-fp32", "st-torch")
    rounds = [
        {
            name: {"short": speed * 2 / (place + 2), "mixed": 1.0, "one": 2.0, "peak_mb": 100.0}
            for place, name in enumerate(names)
        }
        | {"peak": {"fp32": 100.0, "int8": 400.0}}
        for speed in speeds
    ]
    return {
        "machine": "a machine",
        "threads": 2,
        "tokens": {"short": 14.0, "mixed": 100.0, "one": 14.0},
        "config": {"hidden_size": 384, "intermediate_size": 1536, "num_hidden_layers": 6},
        "differences": {},
        "texts": TEXTS,
        "rounds": rounds,
    }


@pytest.fixture
def figures() -> dict[str, Any]:
    sizes = {"imported": 40.4, "loaded": 120.6, "peak": 200.2, "growth": 0.031}
    one = {"texts_per_s": 640.2, "one_text_ms": 2.194, "ratio": 2.456, "one_text_ratio": 1.6789, "graph_mb": 45.84}
    return {
        "date": "2030-01-02",
        "quick": False,
        "processor": {"model": "Chip", "features": ["AVX2", "VNNI"], "threads": 2, "place": "Chip, vnni"},
        "versions": {"onnxruntime": "9.9.9"},
        "texts": {"source": "STS-B", "distinct": 2000},
        "export": {"seconds": 41.2, "sentences": 4321},
        "sts": {"none": {"average": 60.04}, "bundle": {"average": 65.96}},
        "memory": {name: dict.fromkeys(("one", "many", "long"), sizes) for name in ("fp32", "int8")},
        "precision": {
            name: one | {"ratios": [2.4, 2.5], "one_text_ratios": [1.6, 1.7]} for name in ("fp32", "fp16", "int8")
        },
        "speed": {"minilm": result(600, 610, 620), "bert-base": result(70, 80)},
    }


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a folder with the pages that state figures."""
    for page in {*SENTENCES, *TABLES, "benchmarks/peers/figures.json"}:
        (tmp_path / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / page)
    return tmp_path


def write(root: Path, figures: dict[str, Any]) -> None:
    for path, text in rewritten(root, figures).items():
        path.write_text(text, "utf-8")


def test_the_pages_state_the_measured_figures() -> None:
    assert command.FIGURES.exists(), "measure: python -m benchmarks.all --sts DIR"
    pages = rewritten(ROOT, json.loads(command.FIGURES.read_text("utf-8")))
    stale = [path.relative_to(ROOT).as_posix() for path, text in pages.items() if path.read_text("utf-8") != text]
    assert stale == [], "run python -m benchmarks.all --write-tables"


def test_all_figures_reach_the_pages(copy: Path, figures: dict[str, Any]) -> None:
    write(copy, figures)
    readme = (copy / "README.md").read_text("utf-8")
    assert how(figures) in readme
    assert speed_table(figures, with_peak=False) in readme
    assert "takes about 45 seconds" in readme
    assert re.search(r"it needs, here\s4,321\.", readme)
    assert re.search(r"score\s60\.0\son average without\swhitening\sand\s66\.0\swith", readme)
    services = (copy / "docs/guides/services.md").read_text("utf-8")
    assert "121 MB when loaded and 200 MB at the peak" in services
    assert "grew by less than 4 %" in services
    assert "| fp16 | 2.46 | 1.68 | 45.8 MB |" in (copy / "docs/guides/exporting.md").read_text("utf-8")
    peers = json.loads((copy / "benchmarks/peers/figures.json").read_text("utf-8"))
    assert peers["Chip, vnni"] == figures["speed"]
    assert len(peers) == 1 + len(json.loads((ROOT / "benchmarks/peers/figures.json").read_text("utf-8")))
    assert rewritten(copy, figures) == {path: path.read_text("utf-8") for path in rewritten(copy, figures)}


@pytest.mark.parametrize("page", sorted({*SENTENCES, *TABLES}))
def test_every_number_that_is_edited_by_hand_is_found(copy: Path, figures: dict[str, Any], page: str) -> None:
    write(copy, figures)
    path = copy / page
    whole = path.read_text("utf-8")
    numbers = [
        match.span(number)
        for template in SENTENCES.get(page, ())
        for match in pattern(template).finditer(whole)
        for number in range(1, match.re.groups + 1)
    ]
    for block in BLOCK.finditer(whole):
        start = block.start("body")
        numbers += [(start + found.start(), start + found.end()) for found in re.finditer(r"\d+", block["body"])]
    assert numbers
    for start, end in numbers:
        path.write_text(f"{whole[:start]}7{whole[end - 1] if whole[end - 1] != '7' else '8'}{whole[end:]}", "utf-8")
        assert rewritten(copy, figures)[path] == whole, whole[start:end]


def test_the_readme_states_no_speed_beside_its_table() -> None:
    text = BLOCK.sub("", (ROOT / "README.md").read_text("utf-8"))
    section = text[text.index("## Speed") : text.index("## Who opens a bundle")]
    assert re.findall(r"\d[\d.]*(?: times|\s*%|\s*MB|\s*ms)|\d+\.\d+", section) == []


def test_ratios_are_medians_of_the_rounds(figures: dict[str, Any]) -> None:
    rounds = figures["speed"]["minilm"]["rounds"]
    for figure, speed in zip(rounds, (100.0, 200.0, 400.0), strict=True):
        figure["ctranslate2-fp32"]["short"] = speed
    assert "| CTranslate2 | 200 | 3.05 |" in speed_table(figures, with_peak=False)


def test_what_was_not_measured_is_a_dash(figures: dict[str, Any]) -> None:
    lines = speed_table(figures, with_peak=False).splitlines()
    assert next(line for line in lines if line.startswith("| OpenVINO")).endswith("| – | |")
    for figure in figures["speed"]["bert-base"]["rounds"]:
        del figure["fastembed-fp32"]
    assert speed_table(figures, with_peak=False).count("| fastembed |") == 1


def test_the_sentence_names_machine_day_texts_and_rounds(figures: dict[str, Any]) -> None:
    figures["speed"]["bert-base"]["texts"] = TEXTS | {"short": 250}
    words = " ".join(how(figures).split())
    assert "one call with 1,000 (BERT-base: 250) sentences of the STS benchmark" in words
    assert (
        "on 2 threads of Chip with AVX2, VNNI; onnxruntime 9.9.9, 2030-01-02, medians of 3 (BERT-base: 2) rounds"
        in words
    )
    figures["texts"]["source"] = "mine.txt"
    assert "sentences of mine.txt" in how(figures)


@pytest.mark.parametrize("name", ["export", "sts", "memory", "precision", "speed"])
def test_a_measurement_that_is_missing_is_named(figures: dict[str, Any], name: str) -> None:
    del figures[name]
    with pytest.raises(ValueError, match=f"the figures lack .*{name}"):
        values(figures)


def test_one_model_is_not_enough(figures: dict[str, Any]) -> None:
    del figures["speed"]["bert-base"]
    with pytest.raises(ValueError, match="speed of bert-base"):
        values(figures)


def test_a_dry_run_is_not_for_the_pages(copy: Path, figures: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="dry run"):
        rewritten(copy, figures | {"quick": True})


def test_a_sentence_must_be_there_once() -> None:
    assert fill_sentence("It takes\n5 s.", "takes {n} s", {"n": "1,234"}, "page") == "It takes\n1,234 s."
    for text in ("It lasts 5 s.", "It takes 5 s, or takes 6 s"):
        with pytest.raises(ValueError, match=r"page has \d times, wanted once"):
            fill_sentence(text, "takes {n} s", {"n": "1"}, "page")


def test_a_table_that_is_not_known_or_missing_is_refused(figures: dict[str, Any]) -> None:
    tables = blocks(figures)
    for text in ("no table", "<!-- figures: other -->\n\n<!-- end -->\n"):
        with pytest.raises(ValueError, match="wanted speed"):
            fill_blocks(text, tables, ("speed",), "page")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "no texts: name --texts FILE, or --sts DIR"),
        (("--texts", "x", "--models", "gpt"), "--models gpt: wanted some of minilm,bert-base"),
        (("--texts", "x", "--rounds", "0"), "--rounds 0: wanted at least 1"),
        (("--texts", "x", "--out", "nowhere/x.json"), "--out nowhere/x.json: there is no folder nowhere"),
    ],
)
def test_bad_options_are_refused_before_anything_runs(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        command.main(arguments)
    assert refused.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("options", [("--texts", "nothing.txt"), ("--sts", "nowhere")])
def test_texts_that_are_not_there_are_one_line(
    options: tuple[str, ...], capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main([*options, "--cache", str(tmp_path / "cache")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "cache").exists()


def test_tables_without_figures_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert command.main(["--write-tables", "--out", str(tmp_path / "none.json")]) == 1
    assert "none.json is not there; python -m benchmarks.all" in capsys.readouterr().err
