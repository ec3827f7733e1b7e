"""Run the snippets of docs/guides/services.md that make batches inside a service."""

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from support.vectors import worst
from whiten import Encoder

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "services.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


@pytest.fixture
def _in_folder(golden: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bundles").mkdir()
    (tmp_path / "bundles" / "minilm").symlink_to(golden / "bundle-v1")
    monkeypatch.chdir(tmp_path)


def ran(beginning: str) -> dict[str, Any]:
    """Run the snippet that holds this line, and return its names."""
    (code,) = [code for code in SNIPPETS if beginning in code]
    names: dict[str, Any] = {}
    exec(compile(code, str(GUIDE), "exec"), names)
    return names


@pytest.mark.usefixtures("_in_folder")
def test_a_batcher_of_threads(tiny: Encoder) -> None:
    names = ran("with Batcher(")
    assert worst(names["vectors"], tiny.encode(["A text.", "Another."])) <= 1e-5


@pytest.mark.usefixtures("_in_folder")
@pytest.mark.slow
def test_an_encoder_of_fastapi(tiny: Encoder) -> None:
    pytest.importorskip("fastapi", reason="needs the extra test-all")
    import httpx

    names = ran("FastAPI(lifespan=lifespan)")
    app, texts = names["app"], ["A text.", "Another."]

    async def main() -> tuple[Any, Any]:
        async with (
            names["lifespan"](app),
            httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client,
        ):
            first = await client.post("/search", params={"query": texts[0]})
            rows = await client.post("/embeddings/v1/embeddings", json={"input": texts})
        return first.json(), [one["embedding"] for one in rows.json()["data"]]

    first, rows = asyncio.run(main())
    want = tiny.encode(texts)
    assert first["first"] == pytest.approx(want[0, 0], abs=1e-4)
    assert worst(rows, want) <= 1e-5
