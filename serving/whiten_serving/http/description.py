"""Give browsers a page to try the models."""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

from starlette.responses import Response

_SCRIPTS = ("api", "dom", "heat", "code", "try", "compare", "models", "now", "main")


def page() -> Response:
    """Return the page, which needs nothing from elsewhere and runs nothing that is not its own."""
    body, policy = _written()
    headers = {
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
        "vary": "accept",
    }
    return Response(body, headers=headers, media_type="text/html")


@cache
def _written() -> tuple[bytes, str]:
    """Return the page with its style and its script inside, and the policy that allows these two by their hashes."""
    folder = files(__package__) / "page"
    style = (folder / "page.css").read_text("utf-8")
    script = "\n".join((folder / f"{name}.js").read_text("utf-8") for name in _SCRIPTS)
    text = (folder / "index.html").read_text("utf-8").replace("{{style}}", style).replace("{{script}}", script)
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return text.encode(), policy


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
