"""Write the reference of the HTTP routes from the server's own description of them, for make_reference.py."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from whiten_serving.http.openapi import described
from whiten_serving.http.routes import ROUTES

_REFERENCE = "#/components/schemas/"

_NAMES = {"openai": "OpenAI", "tei": "TEI", "ollama": "Ollama"}
_OWN = "openai"
"""Dialect of the errors of our own routes."""

_HEAD = """# HTTP routes

{made}

Every route of `whiten serve` and of `AsyncEncoder.asgi_app`, from the description that the server gives of itself at
`GET /openapi.json` (OpenAPI 3.1). What the fields mean, with examples: [HTTP](../guides/http.md). The numbers are
the statuses of [errors](../guides/http.md#errors); where the server has keys, routes that need one also answer 401.

Bodies are JSON, UTF-8. TEI's routes are also below `/models/NAME`, for servers of several models.
"""


def http(made: str) -> str:
    """Return the text of http.md.

    Args:
        made: comment that says how the file was made.
    """
    document = described(ROUTES, keys=False)
    lines = [_HEAD.format(made=made)]
    for dialect, name in _NAMES.items():
        lines += [
            f"## {name}{', and our own' if dialect == _OWN else ''}\n",
            "| route | what | request | answer | errors |",
            "|---|---|---|---|---|",
        ]
        lines += [*_routes(document["paths"], dialect), ""]
    lines.append("## Bodies\n")
    for name, schema in sorted(document["components"]["schemas"].items(), key=lambda item: _title(item[0])):
        lines += _body(name, schema)
    return "\n".join(lines)


def _routes(paths: Mapping[str, Mapping[str, Any]], dialect: str) -> Iterator[str]:
    """Yield a row for the routes of a dialect that differ in their paths alone."""
    rows: dict[str, list[str]] = {}
    for path, methods in paths.items():
        for method, route in methods.items():
            if dialect in route["tags"]:
                rows.setdefault(_row(route), []).append(f"`{method.upper()} {path}`")
    for row, names in rows.items():
        yield f"| {', '.join(names)} | {row} |"


def _row(route: Mapping[str, Any]) -> str:
    answers = route["responses"]
    request = _content(route["requestBody"]["content"]) if "requestBody" in route else ""
    answer = _content(answers["200"]["content"]) if "200" in answers else "an error alone"
    errors = ", ".join(sorted(status for status in answers if status != "200"))
    return f"{route['summary']} | {request} | {answer} | {errors}"


def _content(content: Mapping[str, Any]) -> str:
    return "text" if "text/plain" in content else _kind(content["application/json"]["schema"])


def _body(name: str, schema: Mapping[str, Any]) -> Iterator[str]:
    """Yield the section of a type of bodies, or of a part of one."""
    yield f"### {_title(name)}\n"
    closed = schema.get("additionalProperties") is False
    sentences = [" ".join(schema.get("description", "").split()), "Other fields are refused." if closed else ""]
    yield " ".join(filter(None, sentences)) + "\n"
    if "properties" not in schema:
        yield f"{_kind(schema)}.\n"
        return
    yield "| field | type | default |"
    yield "|---|---|---|"
    needed = schema.get("required", ())
    for field, kind in schema["properties"].items():
        default = "required" if field in needed else f"`{json.dumps(kind['default'])}`" if "default" in kind else ""
        yield f"| `{field}` | {_kind(kind)} | {default} |"
    yield ""


def _title(name: str) -> str:
    """Return the name of a type; types of one name are told apart by their dialects."""
    module, _, last = name.rpartition(".")
    return f"{last} of {_NAMES[module.rpartition('.')[2]]}" if module else last


def _kind(schema: Mapping[str, Any]) -> str:
    """Describe a JSON schema in words."""
    if "$ref" in schema:
        title = _title(schema["$ref"].removeprefix(_REFERENCE))
        return f"[{title}](#{title.lower().replace(' ', '-')})"
    if "anyOf" in schema:
        return " or ".join(dict.fromkeys(map(_kind, schema["anyOf"])))
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if schema.get("type") == "array":
        if "prefixItems" in schema:
            return f"list of: {'; '.join(map(_kind, schema['prefixItems']))}"
        items = schema.get("items", {})
        return f"list of ({_kind(items)})" if "anyOf" in items else f"list of {_kind(items)}"
    least = f" ≥ {schema['minimum']}" if "minimum" in schema else ""
    return f"{schema.get('type', 'any')}{least}"
