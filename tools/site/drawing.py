"""Draw figures as SVG text: boxes, arrows, dots and curves that read well on light and on dark pages.

The colours follow the reader's colour scheme, by a style inside the file, and every figure has an opaque ground, so
that it can be read wherever a page puts it. The same calls give the same bytes on every machine.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import Literal

Point = tuple[float, float]
Kind = Literal["plain", "own", "good", "bad", "absent"]
Anchor = Literal["start", "middle", "end"]

LINE = 18
"""Distance of two lines of text, in pixels."""

_LIGHT = {
    "ground": "#fbfcfd",
    "ink": "#1d2733",
    "faint": "#5c6875",
    "edge": "#8b98a5",
    "plain": "#eef1f5",
    "own": "#d6ebf7",
    "own-edge": "#1f6f9f",
    "good": "#dcefdc",
    "good-edge": "#2f7a3b",
    "bad": "#f8e0da",
    "bad-edge": "#ad3a1e",
}
_DARK = {
    "ground": "#1a212b",
    "ink": "#e6ebf1",
    "faint": "#a4b0bd",
    "edge": "#738191",
    "plain": "#2a3441",
    "own": "#173f58",
    "own-edge": "#69b7e4",
    "good": "#1e4527",
    "good-edge": "#7cc98a",
    "bad": "#53261b",
    "bad-edge": "#f09a82",
}


def _rules(colours: dict[str, str]) -> str:
    """Return the rules of one colour scheme."""
    kinds = "".join(
        f".{kind}{{fill:{colours[kind]};stroke:{colours[f'{kind}-edge']}}}"
        f".{kind}-line{{stroke:{colours[f'{kind}-edge']}}}.{kind}-text{{fill:{colours[f'{kind}-edge']}}}"
        for kind in ("own", "good", "bad")
    )
    return (
        f".ground{{fill:{colours['ground']};stroke:{colours['edge']};stroke-opacity:.4}}"
        f"text{{fill:{colours['ink']}}}.faint{{fill:{colours['faint']}}}.head{{fill:{colours['edge']}}}"
        f".strong{{stroke:{colours['ink']}}}.strong-head{{fill:{colours['ink']}}}"
        f".plain{{fill:{colours['plain']};stroke:{colours['edge']}}}"
        f".absent{{fill:none;stroke:{colours['edge']};stroke-dasharray:4 4}}"
        f".frame{{fill:none;stroke:{colours['edge']};stroke-dasharray:2 3}}"
        f".line,.plain-line{{stroke:{colours['edge']}}}.plain-text{{fill:{colours['faint']}}}{kinds}"
    )


_STYLE = (
    "text{font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;font-size:14px}"
    "text.small{font-size:12px}text.title{font-weight:600}"
    ".code{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;font-size:12.5px}"
    ".line,.strong,.plain-line,.own-line,.good-line,.bad-line{fill:none;stroke-width:1.6}"
    ".strong{stroke-width:2.2}.dots{fill:none;stroke-width:3.2;stroke-linecap:round;stroke-opacity:.55}"
    f"{_rules(_LIGHT)}@media (prefers-color-scheme:dark){{{_rules(_DARK)}}}"
)


def number(value: float) -> str:
    """Return a number with one decimal at most."""
    text = f"{value:.1f}".removesuffix(".0")
    return "0" if text == "-0" else text


class Drawing:
    """Collects the elements of one figure.

    Args:
        width: width in pixels.
        height: height in pixels.
        title: what the figure shows, for readers who do not see it.
    """

    def __init__(self, width: int, height: int, title: str) -> None:
        self._width, self._height, self._title = width, height, title
        self._elements: list[str] = []

    def text(self, at: Point, words: str, *names: str, anchor: Anchor = "start") -> None:
        """Write one line; `at` is the left end, middle or right end of its base line."""
        names_given = f' class="{" ".join(names)}"' if names else ""
        placed = "" if anchor == "start" else f' text-anchor="{anchor}"'
        x, y = map(number, at)
        self._elements.append(f'<text x="{x}" y="{y}"{names_given}{placed}>{escape(words, quote=False)}</text>')

    def lines(self, at: Point, words: Iterable[str], *names: str, anchor: Anchor = "start") -> None:
        """Write several lines, below each other; those that begin with a backtick are code."""
        for index, line in enumerate(words):
            code = ("code",) if line.startswith("`") else ()
            self.text((at[0], at[1] + LINE * index), line.removeprefix("`"), *names, *code, anchor=anchor)

    def box(self, corner: Point, size: Point, words: Sequence[str], kind: Kind = "plain") -> None:
        """Draw a box with lines in its middle; those that begin with a backtick are code."""
        (x, y), (width, height) = corner, size
        self._elements.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" rx="6" '
            f'class="{kind}"/>'
        )
        first = y + height / 2 - LINE * (len(words) - 1) / 2 + 5
        self.lines((x + width / 2, first), words, *(("faint",) if kind == "absent" else ()), anchor="middle")

    def frame(self, corner: Point, size: Point, label: str) -> None:
        """Draw a dotted frame with a label in its upper left corner."""
        (x, y), (width, height) = corner, size
        self._elements.append(
            f'<rect x="{number(x)}" y="{number(y)}" width="{number(width)}" height="{number(height)}" rx="8" '
            'class="frame"/>'
        )
        self.text((x + 12, y + 20), label, "code", "faint")

    def arrow(self, *points: Point, strong: bool = False) -> None:
        """Draw a line through points, with a head at the last."""
        name, head = ("strong", "strong-head") if strong else ("line", "head")
        path = " ".join(f"{'M' if index == 0 else 'L'}{number(x)} {number(y)}" for index, (x, y) in enumerate(points))
        self._elements.append(f'<path d="{path}" class="{name}" marker-end="url(#{head})"/>')

    def line(self, points: Iterable[Point], kind: Kind | Literal["line"] = "line") -> None:
        """Draw a line through points."""
        path = "".join(f"{'M' if index == 0 else 'L'}{number(x)} {number(y)}" for index, (x, y) in enumerate(points))
        name = "line" if kind == "line" else f"{kind}-line"
        self._elements.append(f'<path d="{path}" class="{name}"/>')

    def dots(self, points: Iterable[Point], kind: Kind) -> None:
        """Draw a dot at each point."""
        path = "".join(f"M{number(x)} {number(y)}h0" for x, y in points)
        self._elements.append(f'<path d="{path}" class="{kind}-line dots"/>')

    def svg(self) -> str:
        """Return the file."""
        width, height = self._width, self._height
        size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        heads = "".join(
            f'<marker id="{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="{side}" markerHeight="{side}" '
            f'orient="auto"><path d="M0 0L8 4L0 8z" class="{name}"/></marker>'
            for name, side in (("head", 7), ("strong-head", 5))
        )
        ground = f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10" class="ground"/>'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size}>',
                f"<title>{escape(self._title, quote=False)}</title>",
                f"<style>{_STYLE}</style>",
                f"<defs>{heads}</defs>",
                ground,
                *self._elements,
                "</svg>\n",
            ]
        )
