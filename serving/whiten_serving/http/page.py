"""Answer browsers with the page of the server: one document, which needs nothing from elsewhere."""

from base64 import b64encode
from functools import cache
from hashlib import sha256
from importlib.resources import files

from starlette.responses import Response


def page() -> Response:
    """Return the page, and the policy that lets it run its own script only and ask its own server only."""
    body, policy = _document()
    headers = {
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
        "cache-control": "no-cache",
        "vary": "accept",
    }
    return Response(body, headers=headers, media_type="text/html")


@cache
def _document() -> tuple[bytes, str]:
    folder = files(__package__) / "page"
    html, style, script = ((folder / name).read_text("utf-8") for name in ("index.html", "page.css", "page.js"))
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    )
    return html.replace("{{style}}", style).replace("{{script}}", script).encode(), policy


def _hash(text: str) -> str:
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
