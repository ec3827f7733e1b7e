"""List the sentences that the product says: `python tests/support/messages.py` writes `tests/messages.txt`.

A changed word is a changed line there, so that a person reads all words of a change as one diff, and tests need none.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "messages.txt"
PACKAGES = ("evaluation", "export", "models", "runtime", "scale", "serving", "whiten", "whitening")
WORDS = 3
"""Words of a literal from which on it counts as a sentence."""


def text_of(node: ast.AST) -> str:
    """Return the words of a literal, with `{}` for each part that is computed."""
    match node:
        case ast.Constant(value=str(words)):
            return words
        case ast.JoinedStr(values=parts):
            return "".join(map(text_of, parts))
    return "{}"


def literals(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the literals below a node in their order, without docstrings and help, which the reference shows."""
    match node:
        case ast.Expr(value=ast.Constant()):
            return
        case ast.keyword(arg="help") | ast.keyword(arg="epilog"):
            return
        case ast.Constant() | ast.JoinedStr():
            yield node
            return
    for child in ast.iter_child_nodes(node):
        yield from literals(child)


def sentences(source: str) -> list[str]:
    """Return what a module says, in its order."""
    texts = (" ".join(text_of(literal).split()) for literal in literals(ast.parse(source)))
    texts = ("".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text) for text in texts)
    return [text for text in texts if len([word for word in text.split() if word[:1].isalpha()]) >= WORDS]


def catalogue() -> str:
    """Return the sentences of all modules."""
    lines: list[str] = []
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            texts = sentences(path.read_text("utf-8"))
            if texts:
                lines += [f"[{path.relative_to(ROOT).as_posix()}]", *texts, ""]
    return "\n".join(lines)


if __name__ == "__main__":
    FILE.write_text(catalogue(), "utf-8")
