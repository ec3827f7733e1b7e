"""Draw pictures of the documentation from tables and pages: `python -m support.charts` in tests/ writes them."""

from collections.abc import Mapping
from pathlib import Path

from support.charts import bundle, lengths, search, shutdown, speed

ROOT = Path(__file__).parents[3]
IMAGES = ROOT / "docs" / "images"


def pictures() -> Mapping[str, str]:
    """Return the pictures by the names of their files."""
    retrieval = (ROOT / "benchmarks" / "retrieval" / "README.md").read_text("utf-8")
    return {
        "speed.svg": speed.draw((ROOT / "benchmarks" / "peers" / "table.md").read_text("utf-8")),
        "bundle.svg": bundle.draw(),
        "bytes.svg": search.by_bytes(retrieval),
        "layers.svg": search.by_layer(retrieval),
        "lengths.svg": lengths.draw((ROOT / "benchmarks" / "long_texts" / "table.md").read_text("utf-8")),
        "shutdown.svg": shutdown.draw(),
    }
