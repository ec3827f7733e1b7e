"""The files in .github/ are what the hosted service reads, call scripts that exist, and publish nothing."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
FORMS = sorted(path for path in (GITHUB / "ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml")
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
KINDS = {"markdown", "textarea", "input", "dropdown", "checkboxes"}


def read(path: Path) -> dict[Any, Any]:
    content = yaml.safe_load(path.read_text("utf-8"))
    assert isinstance(content, dict)
    return content


def steps(path: Path) -> list[dict[str, Any]]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("form", FORMS, ids=lambda path: path.stem)
def test_a_form_has_what_the_service_asks_for(form: Path) -> None:
    content = read(form)
    assert content["name"]
    assert content["description"]
    for part in content["body"]:
        assert part["type"] in KINDS
        assert part["attributes"].get("value" if part["type"] == "markdown" else "label")
    fields = [part["id"] for part in content["body"] if part["type"] != "markdown"]
    assert len(set(fields)) == len(fields) > 0


@pytest.mark.parametrize(
    ("form", "command"),
    [
        ("bug", "whiten doctor"),
        ("bug", "whiten info"),
        ("wrong_vectors", "whiten verify"),
        ("wrong_vectors", "whiten doctor"),
    ],
)
def test_forms_ask_for_the_output_of_commands_that_exist(form: str, command: str) -> None:
    from whiten_runtime.commands.main import whiten

    parts = read(GITHUB / "ISSUE_TEMPLATE" / f"{form}.yml")["body"]
    assert any(command in part["attributes"].get("label", "") for part in parts)
    name = command.split()[1]
    assert name in whiten.list_commands(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_calls_scripts_and_pins_actions(workflow: Path) -> None:
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"actions/[\w-]+@v\d+\.\d+\.\d+", step["uses"]), step
        else:
            assert (ROOT / step["run"]).stat().st_mode & 0o111, step
    scripts = {step["run"] for step in steps(workflow) if "run" in step}
    assert {".ci/run", ".ci/release"} <= scripts


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_can_only_read_and_publishes_nothing(workflow: Path) -> None:
    assert read(workflow)["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in read(workflow)["jobs"].values())
    assert not re.search(r"secrets\.|id-token|twine upload|npm publish|pypi-publish", workflow.read_text("utf-8"))
    assert read(workflow)["jobs"]["release"]["if"] == "startsWith(github.ref, 'refs/tags/v')"


def test_there_are_forms_and_a_workflow() -> None:
    assert [path.stem for path in FORMS] == ["bug", "feature", "wrong_vectors"]
    assert [path.stem for path in WORKFLOWS] == ["ci"]
