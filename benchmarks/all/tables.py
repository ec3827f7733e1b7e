"""Write the tables of speed as Markdown."""

from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.peers.report import Model, ratio, share_of_peak

NAMES = {"minilm": "all-MiniLM-L6-v2", "bert-base": "BERT-base"}

ROWS = (
    ("CTranslate2", "ctranslate2-fp32", "ctranslate2-int8"),
    ("sentence-transformers, onnxruntime", "st-onnx", "st-onnx-int8"),
    ("OpenVINO", "openvino-fp32", "openvino-bf16"),
    ("fastembed", "fastembed-fp32", None),
)
"""Label of each engine, and its names in float32 and in int8 or bfloat16."""

_EMPTY = "\N{EN DASH}"


def blocks(figures: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables by name, each with a sentence on how it was made."""
    return {
        "speed": f"{how(figures)}\n\n{speed_table(figures, False)}",
        "speed-and-peak": f"{how(figures)}\n\n{speed_table(figures, True)}",
    }


def how(figures: Mapping[str, Any]) -> str:
    """Return what was measured, where and when, in lines of up to 120 characters."""
    results, unit = figures["speed"], figures["processor"]
    source = figures["texts"]["source"]
    texts = "sentences of the STS benchmark" if source == "STS-B" else f"sentences of {source}"
    counts = {name: result["texts"]["short"] for name, result in results.items()}
    rounds = {name: len(result["rounds"]) for name, result in results.items()}
    sentence = (
        f"Texts per second of one call with {_each(counts)} {texts}, each engine with its best settings, on "
        f"{unit['threads']} threads of {unit['model']} with {', '.join(unit['features'])}; onnxruntime "
        f"{figures['versions']['onnxruntime']}, {figures['date']}, medians of {_each(rounds)} rounds. Ratio: whiten "
        "over the other engine, median of the rounds."
    )
    return wrapped(sentence)


def speed_table(figures: Mapping[str, Any], with_peak: bool) -> str:
    """Return the table of engines by model, with the share of the processor's int8 peak if asked."""
    head = ["model, engine", "fp32", "ratio", "int8 (or bf16)", "ratio"]
    lines = [[*head, "share of the processor's int8 peak"] if with_peak else head, ["---"] * (5 + with_peak)]
    for name, result in figures["speed"].items():
        first = "whiten" if with_peak else "**whiten**"
        own = [f"{NAMES[name]}: {first}", _rate(result, "whiten-fp32"), "", _rate(result, "whiten-int8"), ""]
        lines.append([*own, f"{100 * share_of_peak(result, 'int8', 'short'):.0f} %"] if with_peak else own)
        for label, full, small in ROWS:
            if full not in result["rounds"][0]:
                continue
            cells = [label, *_cells(result, "whiten-fp32", full), *_cells(result, "whiten-int8", small)]
            lines.append([*cells, ""] if with_peak else cells)
    return "\n".join("".join(f"| {cell} " if cell else "| " for cell in cells) + "|" for cells in lines)


def rates(result: Model, engine: str, workload: str = "short") -> list[float]:
    """Return the texts per second of an engine, round by round."""
    return [figures[engine][workload] for figures in result["rounds"]]


def wrapped(text: str, width: int = 120) -> str:
    """Break a paragraph into lines."""
    lines = [""]
    for word in text.split(" "):
        if len(lines[-1]) + len(word) >= width:
            lines.append("")
        lines[-1] += f"{' ' if lines[-1] else ''}{word}"
    return "\n".join(lines)


def _each(numbers: Mapping[str, int]) -> str:
    """Return a number, or the first model's and those of the others where they differ."""
    first, *others = numbers
    more = [f"{NAMES[name]}: {numbers[name]:,}" for name in others if numbers[name] != numbers[first]]
    return f"{numbers[first]:,}" + (f" ({', '.join(more)})" if more else "")


def _rate(result: Model, engine: str) -> str:
    return f"{median(rates(result, engine)):.0f}"


def _cells(result: Model, ours: str, engine: str | None) -> tuple[str, str]:
    """Return an engine's texts per second, and the ratio of whiten's to it."""
    if engine is None or engine not in result["rounds"][0]:
        return _EMPTY, ""
    kind = " (bf16)" if engine.endswith("bf16") else ""
    return f"{_rate(result, engine)}{kind}", f"{median(ratio(result['rounds'], ours, engine, 'short')):.2f}"
