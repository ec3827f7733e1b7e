"""Run the notebooks from the first cell to the last, with the assertions in their cells, in a kernel of Jupyter."""

import re
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

nbformat = pytest.importorskip("nbformat", reason="needs the extra test-all")
nbclient = pytest.importorskip("nbclient", reason="needs the extra test-all")

FOLDER = Path(__file__).parents[2] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)


def run(notebook: Any, folder: Path) -> str:
    """Run a notebook in a folder, and return what its cells printed."""
    client = nbclient.NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    return "".join(output.text for output in outputs if output.output_type == "stream" and output.name == "stdout")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_no_outputs_are_kept(path: Path) -> None:
    notebook = read(path)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [(cell.outputs, cell.execution_count) for cell in code] == [([], None)] * len(code)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.name)
def test_links_lead_to_files(path: Path) -> None:
    texts = "".join(cell.source for cell in read(path).cells if cell.cell_type == "markdown")
    links = re.findall(r"\]\(([^)#\s]+)", texts)
    assert links
    assert all((path.parent / link).is_file() for link in links if "://" not in link)


def test_first_steps(tmp_path: Path) -> None:
    notebook = read(FOLDER / "first-steps.ipynb")
    printed = run(notebook, tmp_path)
    assert (tmp_path / "bundles" / "first-steps" / "whiten.json").is_file()
    assert "soft whitening, shrinkage 0.5, fitted on " in printed
    first = printed.split("How long does bread dough have to rest?\n")[1].splitlines()[0]
    assert first.endswith("  Let the dough rest for an hour before you bake the bread.")
    plot = next(cell for cell in notebook.cells if "axes.hist" in cell.source)
    assert [output.data["image/png"] for output in plot.outputs if "data" in output]
