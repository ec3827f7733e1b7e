"""Draw nDCG@10 by the bytes of a vector, and by layer, from the tables of benchmarks/retrieval."""

import math
import re

from support.charts.svg import bar, label, picture

_WIDTH = 740
_LEFT, _RIGHT, _TOP, _BOTTOM = 60, 20, 50, 290
_LOWEST, _HIGHEST = 46.0, 51.5
"""Range of nDCG@10 of the picture by bytes."""

_LARGEST = 60.0
"""Length of a bar by layer, in points of nDCG@10, that fills its part of the picture."""


def rows_below(page: str, heading: str) -> list[list[str]]:
    """Return the rows of the first table below some words, without its head."""
    lines = page.partition(heading)[2].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|---"))
    table = lines[start + 1 :]
    end = next((number for number, line in enumerate(table) if not line.startswith("|")), len(table))
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in table[:end]]


def stored(page: str) -> list[tuple[str, int, float]]:
    """Return the ways to store vectors of all-MiniLM-L6-v2: name, bytes, nDCG@10."""
    rows = rows_below(page, "## Storage")
    return [(row[0], int(row[1].replace(",", "")), float(row[2])) for row in rows if row[1]]


def by_bytes(page: str) -> str:
    """Return a picture of the score of each way to store vectors, over its bytes, which double at equal distances."""
    title = "Search quality by bytes of a vector: nDCG@10 on Cranfield, all-MiniLM-L6-v2, centred"
    elements = [label(16, 25, title, "title")]
    for score in range(46, 52):
        y = _height(score)
        elements.append(f'<path d="M{_LEFT} {y:.0f}H{_WIDTH - _RIGHT}" class="grid"/>')
        elements.append(label(_LEFT - 8, y + 4, str(score), "small faint", "end"))
    for size in (32, 64, 128, 256, 512, 1024):
        elements.append(label(_place(size), _BOTTOM + 20, f"{size:,}", "small faint", "middle"))
    elements.append(label((_LEFT + _WIDTH - _RIGHT) / 2, _BOTTOM + 42, "bytes of a vector", "small faint", "middle"))
    for name, size, score in stored(page):
        x, y = _place(size), _height(score)
        words = f"{name}: {size:,} bytes, {score:.1f}"
        elements.append(f'<circle cx="{x:.0f}" cy="{y:.0f}" r="6" class="own"/>')
        rightmost = size > 1000
        elements.append(
            label(round(x), round(y) + (24 if rightmost else -12), words, "small", "end" if rightmost else "start")
        )
    return picture(title, _WIDTH, _BOTTOM + 56, elements)


def _place(size: int) -> float:
    return _LEFT + (_WIDTH - _RIGHT - _LEFT) * math.log2(size / 32) / math.log2(2048 / 32)


def _height(score: float) -> float:
    return _BOTTOM - (_BOTTOM - _TOP) * (score - _LOWEST) / (_HIGHEST - _LOWEST)


def layers(page: str, model: str) -> list[tuple[str, float, float]]:
    """Return the single layers of a model: name, nDCG@10 as they are, and whitened as an export does."""
    rows = rows_below(page, f"\n{model}:\n")
    return [(row[0], float(row[1]), float(row[2])) for row in rows if re.match(r"\d+(, as published)?$", row[0])]


def by_layer(page: str) -> str:
    """Return a picture of the scores of layers, each as it is and whitened."""
    title = "Search quality by layer: nDCG@10 on Cranfield"
    elements = [
        label(16, 25, title, "title"),
        bar(380, 14, 14, 12, "other"),
        label(400, 25, "as it is", "small"),
        bar(462, 14, 14, 12, "own"),
        label(482, 25, "softly whitened on built-in sentences", "small"),
    ]
    y = 44
    for model in ("all-MiniLM-L6-v2", "all-mpnet-base-v2"):
        elements.append(label(16, y + 16, model, "small title"))
        y += 26
        for name, plain, whitened in layers(page, model):
            elements.append(label(202, y + 20, f"layer {name}", anchor="end"))
            for place, score, kind in ((0, plain, "other"), (15, whitened, "own")):
                length = (_WIDTH - 210 - 60) * score / _LARGEST
                elements.append(bar(210, y + place, length, 13, kind))
                elements.append(label(round(216 + length), y + place + 11, f"{score:.1f}", "small"))
            y += 36
    return picture(title, _WIDTH, y + 8, elements)
