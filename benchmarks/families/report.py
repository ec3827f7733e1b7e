"""Format the results of several versions of transformers as one table."""

from typing import Any

PRECISIONS = ("fp32", "fp16", "int8")


def table(results: list[dict[str, Any]]) -> str:
    """Return the table, with the head that names versions, runs and processors."""
    versions = [str(result["transformers"]) for result in results]
    made = [f"transformers {result['transformers']}, one run on {result['machine']}" for result in results]
    header = ["name", "family", "layers, pooling"]
    for version in versions:
        header += [f"fp32 ({version})", "fp16", "int8", "1 - worst cosine int8", "equal tokens"]
    lines = [header, ["---"] * len(header)]
    for rows in zip(*(result["rows"] for result in results), strict=True):
        line = [rows[0]["name"], rows[0]["family"], rows[0]["settings"]]
        for row in rows:
            line += [shown(row["differences"].get(precision, "-")) for precision in PRECISIONS]
            line += [f"{1 - row['cosines']['int8']:.1e}" if "int8" in row["cosines"] else "-", row["tokens"]]
        lines.append(line)
    head = f"Made by `python -m benchmarks.families`: {'; '.join(made)}.\n"
    return head + "\n" + "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def shown(value: float | str) -> str:
    """Format a difference; an error and "-" stay as they are."""
    return value if isinstance(value, str) else f"{value:.1e}"
