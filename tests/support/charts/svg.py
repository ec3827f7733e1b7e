"""Write pictures as SVG, whose colours follow the reader's light or dark scheme."""

from collections.abc import Iterable, Mapping

STYLE = {
    "text": "font-family:system-ui,-apple-system,'Segoe UI',Helvetica,Arial,sans-serif;font-size:13px;fill:#1d2733",
    ".title": "font-weight:600",
    ".small": "font-size:12px",
    ".faint": "fill:#5c6875",
    ".light": "fill:#fbfcfd",
    ".code": "font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre",
    ".ground": "fill:#fbfcfd;stroke:#8b98a5;stroke-opacity:.4",
    ".frame": "fill:none;stroke:#8b98a5;stroke-dasharray:3 3",
    ".grid": "stroke:#8b98a5;stroke-opacity:.35",
    ".line": "fill:none;stroke:#8b98a5;stroke-width:1.6",
    ".head": "fill:#8b98a5",
    ".own": "fill:#1f6f9f",
    ".other": "fill:#b4bfca",
    ".box": "fill:#eef1f5;stroke:#8b98a5",
    ".own-box": "fill:#d6ebf7;stroke:#1f6f9f",
}
"""Rules of the light scheme, by their selectors. A picture has those that it uses."""

DARK = {
    ".ground": "fill:#1a212b;stroke:#738191",
    "text": "fill:#e6ebf1",
    ".faint": "fill:#a4b0bd",
    ".light": "fill:#1a212b",
    ".own": "fill:#69b7e4",
    ".other": "fill:#4d5a68",
    ".box": "fill:#2a3441;stroke:#738191",
    ".own-box": "fill:#173a50;stroke:#69b7e4",
}
"""What other colours the dark scheme has."""


def picture(title: str, width: int, height: int, elements: Iterable[str]) -> str:
    """Return a picture with a title for screen readers, in a frame with a ground of its own."""
    body = "\n".join(elements)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">\n'
        f"<title>{escaped(title)}</title>\n<style>{_rules(STYLE, body)}"
        f"@media (prefers-color-scheme:dark){{{_rules(DARK, body)}}}</style>\n"
        f'<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10" class="ground"/>\n{body}\n</svg>\n'
    )


def label(x: float, y: float, words: str, kind: str = "", anchor: str = "start") -> str:
    """Return a line of text of some classes."""
    classes = f' class="{kind}"' if kind else ""
    side = "" if anchor == "start" else f' text-anchor="{anchor}"'
    return f'<text x="{x:g}" y="{y:g}"{classes}{side}>{escaped(words)}</text>'


def bar(x: float, y: float, width: float, height: float, kind: str) -> str:
    """Return a rectangle with slightly rounded corners."""
    return f'<rect x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}" rx="2" class="{kind}"/>'


def escaped(words: str) -> str:
    """Return words as XML has them."""
    return words.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _rules(rules: Mapping[str, str], body: str) -> str:
    used = [name for name in rules if name in ("text", ".ground") or name[1:] in body]
    return "".join(f"{name}{{{rules[name]}}}" for name in used)
