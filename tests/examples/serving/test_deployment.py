"""Deployments of `whiten serve`: what this machine can check of them without a container, a cluster or root.

Not checked anywhere: that the image builds, that compose starts, that a cluster takes the manifests and scales.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.once import installed_packages
from support.server import RunningServer
from whiten_serving.commands.serve import SECONDS, serve

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[3] / "examples" / "serving"


@pytest.fixture(scope="session")
def tools() -> Path:
    """The folder of the packages that check the examples."""
    requirements = Path(__file__).with_name("requirements.txt")
    return installed_packages("serving-examples", requirements)


def checked(tools: Path, code: str, *arguments: object) -> Any:
    """Run Python with the tools, and return the JSON that it prints."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(tools)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def documents(tools: Path, path: Path) -> list[dict[str, Any]]:
    """Return the documents of a file of YAML."""
    code = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))"
    found: list[dict[str, Any]] = checked(tools, code, path)
    return found


def resolved(arguments: list[str], variables: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options and models that a command line and an environment give; options must be known."""
    known = {f"WHITEN_SERVE_{str(one.name).upper()}" for one in serve.params}
    assert set(variables) <= known, set(variables) - known
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        context = serve.make_context("serve", list(arguments))
    return context.params, [text.partition("=")[2] or text for text in context.params["models"]]


def test_the_configuration_is_understood() -> None:
    options, models = resolved(["--config", str(EXAMPLES / "serve.toml")], {})
    assert (options["max_wait"], options["drain"], options["grace"]) == (5.0, 5.0, 30.0)
    assert models == ["/bundles/minilm-l1-l6-int8"]


def test_the_dockerfile(tools: Path) -> None:
    lint = subprocess.run(
        [tools / "bin" / "hadolint", EXAMPLES / "Dockerfile"], capture_output=True, text=True, check=False
    )
    assert lint.returncode == 0, lint.stdout
    code = (
        "import io, json, sys; from dockerfile_parse import DockerfileParser; "
        "parser = DockerfileParser(fileobj=io.BytesIO(open(sys.argv[1], 'rb').read())); "
        "print(json.dumps([parser.structure, dict(parser.envs)]))"
    )
    structure, variables = checked(tools, code, EXAMPLES / "Dockerfile")
    last = {step["instruction"]: step["value"] for step in structure}
    assert last["USER"] == "65532:65532"
    assert json.loads(last["ENTRYPOINT"]) == ["whiten", "serve"]
    named = {name: value for name, value in variables.items() if name.startswith("WHITEN_SERVE_")}
    options, models = resolved([], named)
    assert (options["host"], options["port"]) == ("0.0.0.0", int(last["EXPOSE"]))
    assert models == ["/bundle"]


def test_what_the_image_is_built_from_is_there() -> None:
    lines = (EXAMPLES / "Dockerfile.dockerignore").read_text("utf-8").splitlines()
    root = EXAMPLES.parents[1]
    kept_files = [line[1:] for line in lines if line.startswith("!")]
    assert kept_files
    for name in kept_files:
        assert (root / name).exists(), name
    project = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {Path(package).parts[0] for package in packages} <= set(kept_files)


def test_compose(tools: Path) -> None:
    (tree,) = documents(tools, EXAMPLES / "compose.yaml")
    service = tree["services"]["whiten"]
    options, models = resolved([], service["environment"])
    assert service["read_only"] is True
    assert models == [service["volumes"][0].split(":")[1]]
    assert options["drain"] + options["grace"] < SECONDS.convert(service["stop_grace_period"], None, None)
    assert options["api_key_file"] == f"/run/secrets/{service['secrets'][0]}"
    assert service["secrets"][0] in tree["secrets"]
    assert (
        EXAMPLES / service["build"]["context"] / service["build"]["dockerfile"]
    ).resolve() == EXAMPLES / "Dockerfile"


def manifests(tools: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((EXAMPLES / "kubernetes").glob("*.yaml")):
        yield from ((path.name, document) for document in documents(tools, path))


def test_the_manifests_are_what_kubernetes_takes(tools: Path) -> None:
    code = (
        "import json, sys, kubernetes_validate as k, yaml; documents = list(yaml.safe_load_all(open(sys.argv[1]))); "
        "[k.validate(one, k.latest_version(), strict=True) for one in documents]; "
        "print(json.dumps([one['kind'] for one in documents]))"
    )
    kinds = [checked(tools, code, path) for path in sorted((EXAMPLES / "kubernetes").glob("*.yaml"))]
    assert kinds == [["HorizontalPodAutoscaler", "PodDisruptionBudget"], ["Deployment"], ["Service"]]


def test_pods_drain_before_they_are_killed(tools: Path) -> None:
    pod = next(one for _, one in manifests(tools) if one["kind"] == "Deployment")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    variables = {one["name"]: one["value"] for one in container["env"] if one["name"].startswith("WHITEN_SERVE_")}
    options, _ = resolved([], variables)
    assert options["drain"] < options["grace"] < pod["terminationGracePeriodSeconds"]
    assert options["drain"] + options["grace"] < pod["terminationGracePeriodSeconds"]
    readiness = container["readinessProbe"]
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < options["drain"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_probes_and_metrics_are_there(tools: Path, tiny_bundle: Path) -> None:
    found = {one["kind"]: one for _, one in manifests(tools)}
    container = found["Deployment"]["spec"]["template"]["spec"]["containers"][0]
    metric = found["HorizontalPodAutoscaler"]["spec"]["metrics"][0]["pods"]["metric"]["name"]
    with RunningServer(tiny_bundle) as server:
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert server.call("GET", container[probe]["httpGet"]["path"]).status_code == 200
        assert f"\n{metric} " in server.call("GET", "/metrics").text


def test_the_units_of_systemd(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here")
    for name in ("whiten.service", "whiten.socket"):
        text = (EXAMPLES / "systemd" / name).read_text("utf-8")
        (tmp_path / name).write_text(text.replace("/opt/whiten/bin/whiten", "/bin/true"), "utf-8")
    files = [tmp_path / "whiten.service", tmp_path / "whiten.socket"]
    done = subprocess.run([analyze, "verify", *files], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_service_stops_in_time() -> None:
    text = (EXAMPLES / "systemd" / "whiten.service").read_text("utf-8")
    fields = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))
    words = shlex.split(fields["ExecStart"])
    assert words[:2] == ["/opt/whiten/bin/whiten", "serve"]
    options, _ = resolved(words[2:], {})
    assert options["fd"] == 3
    assert options["drain"] + options["grace"] < float(fields["TimeoutStopSec"])
    assert fields["Type"] == "notify"
