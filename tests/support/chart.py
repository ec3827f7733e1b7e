"""Draw the chart of speed of the README from the table of engines: `python tests/support/chart.py`."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CHART = ROOT / "docs" / "images" / "speed.svg"
TABLE = ROOT / "benchmarks" / "peers" / "table.md"

ENGINES = {
    "whiten-int8": "whiten, int8",
    "openvino-int8": "OpenVINO, int8",
    "ctranslate2-int8": "CTranslate2, int8",
    "openvino-bf16": "OpenVINO, bfloat16",
    "whiten-fp32": "whiten",
    "st-onnx-int8": "sentence-transformers, onnxruntime, int8",
    "ctranslate2-fp32": "CTranslate2",
    "openvino-fp32": "OpenVINO",
    "st-onnx": "sentence-transformers, onnxruntime",
    "st-torch": "sentence-transformers, PyTorch",
    "fastembed-fp32": "fastembed",
}
"""Names of the engines in the chart by those in the table."""

_WIDTH, _LEFT, _RIGHT, _ROW, _TOP = 740, 310, 190, 24, 40
STYLE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;font-size:13px;fill:#1d2733}"
    ".title{font-weight:600}.ground{fill:#fbfcfd;stroke:#8b98a5;stroke-opacity:.4}.own{fill:#1f6f9f}.other{fill:#b4bfca}"
    "@media (prefers-color-scheme:dark){.ground{fill:#1a212b;stroke:#738191}text{fill:#e6ebf1}.own{fill:#69b7e4}"
    ".other{fill:#4d5a68}}"
)


def speeds(table: str) -> dict[str, float]:
    """Return texts a second, short ones, of the first table, by engine."""
    first = table.partition("**minilm**")[2].partition("**bert")[0]
    rows = re.findall(r"^\| ([\w-]+) \| ([\d.]+) \|", first, re.MULTILINE)
    return {name: float(speed) for name, speed in rows if name in ENGINES}


def worst_cosines(table: str) -> dict[str, str]:
    """Return the worst cosine to whiten's float32 vectors, as the first table writes it, by engine."""
    first = table.partition("**minilm**")[2].partition("**bert")[0]
    rows = re.findall(r"^\| ([\w-]+) \|.*\| (\d\.\d+) \|$", first, re.MULTILINE)
    return {name: cosine for name, cosine in rows if name in ENGINES}


def draw(table: str) -> str:
    """Return the chart of a table as SVG, the fastest engine first."""
    worst = worst_cosines(table)
    figures = sorted(speeds(table).items(), key=lambda row: -row[1])
    height = _TOP + _ROW * len(figures) + 14
    title = "Short texts a second: all-MiniLM-L6-v2, 2 threads of an AMD EPYC"
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" role="img">',
        f"<title>{title}</title>",
        f"<style>{STYLE}</style>",
        f'<rect x=".5" y=".5" width="{_WIDTH - 1}" height="{height - 1}" rx="10" class="ground"/>',
        f'<text x="16" y="25" class="title">{title}</text>',
    ]
    for number, (name, speed) in enumerate(figures):
        y = _TOP + _ROW * number
        length = (_WIDTH - _LEFT - _RIGHT) * speed / figures[0][1]
        exactness = f" (worst cosine {worst[name]})" if name.endswith("int8") else ""
        kind = "own" if name.startswith("whiten") else "other"
        lines += [
            f'<text x="{_LEFT - 8}" y="{y + 14}" text-anchor="end">{ENGINES[name]}</text>',
            f'<rect x="{_LEFT}" y="{y + 2}" width="{length:.0f}" height="16" rx="2" class="{kind}"/>',
            f'<text x="{_LEFT + length + 6:.0f}" y="{y + 14}">{speed:,.0f}{exactness}</text>',
        ]
    return "\n".join([*lines, "</svg>"]) + "\n"


if __name__ == "__main__":
    CHART.write_text(draw(TABLE.read_text("utf-8")), "utf-8")
