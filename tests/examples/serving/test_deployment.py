"""Deployments of `whiten serve`: what this machine can check of them without a container, a cluster or root.

Not checked anywhere: that the image builds, that compose starts, that a cluster takes the manifests and scales.
"""

import json
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.server import RunningServer
from whiten_serving.commands.serve import read_config, serve
from whiten_serving.settings import SECONDS, Settings, parse_address

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[3] / "examples" / "serving"


def resolved(arguments: list[str], variables: dict[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Return the options and models that a command line and an environment give; options must be known."""
    known = {f"WHITEN_SERVE_{str(one.name).upper()}" for one in serve.params}
    assert set(variables) <= known, set(variables) - known
    with pytest.MonkeyPatch.context() as patch:
        for name, value in variables.items():
            patch.setenv(name, value)
        context = serve.make_context("serve", list(arguments))
    given = {name: value for name, value in context.params.items() if value is not None}
    config = read_config(given.pop("config")) if "config" in given else {"models": []}
    given = config | given | {"models": given["models"] or config["models"]}
    models = given.pop("models")
    return vars(Settings(**given)), [text.partition("=")[2] or text for text in models]


def test_the_configuration_is_understood() -> None:
    options, models = resolved(["--config", str(EXAMPLES / "serve.toml")], {})
    assert (options["max_wait"], options["drain"], options["grace"], options["on_long"]) == (5.0, 5.0, 30.0, "truncate")
    assert models == ["/bundles/minilm-int8"]


@pytest.mark.parametrize(("folder", "device"), [("", None), ("gpu", "cuda")])
def test_the_dockerfile(folder: str, device: str | None, dockerfile: Callable[[Path], Any]) -> None:
    steps, variables, kept = dockerfile(EXAMPLES / folder / "Dockerfile")
    assert json.loads(dict(steps)["ENTRYPOINT"]) == ["whiten", "serve"]
    named = {name: value for name, value in variables.items() if name.startswith("WHITEN_SERVE_")}
    options, models = resolved([], named)
    assert parse_address(options["listen"]) == ("0.0.0.0", int(dict(steps)["EXPOSE"]))
    assert named.get("WHITEN_SERVE_DEVICE") == device
    assert models == ["/bundle"]
    project = tomllib.loads((EXAMPLES.parents[1] / "pyproject.toml").read_text("utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert {Path(package).parts[0] for package in packages} <= kept


def test_compose() -> None:
    tree = yaml.safe_load((EXAMPLES / "compose.yaml").read_text("utf-8"))
    service = tree["services"]["whiten"]
    options, models = resolved([], service["environment"])
    assert service["read_only"] is True
    assert models == [service["volumes"][0].split(":")[1]]
    assert options["drain"] + options["grace"] < SECONDS.read("", service["stop_grace_period"])
    assert options["api_key_file"] == f"/run/secrets/{service['secrets'][0]}"
    assert service["secrets"][0] in tree["secrets"]
    built = EXAMPLES / service["build"]["context"] / service["build"]["dockerfile"]
    assert built.resolve() == EXAMPLES / "Dockerfile"


def manifests() -> dict[str, dict[str, Any]]:
    """Return the manifests of Kubernetes by their kinds."""
    texts = [path.read_text("utf-8") for path in (EXAMPLES / "kubernetes").glob("*.yaml")]
    return {one["kind"]: one for text in texts for one in yaml.safe_load_all(text)}


def test_the_manifests_are_what_kubernetes_takes(checked: Callable[..., Any]) -> None:
    code = (
        "import json, sys, kubernetes_validate as k, yaml; documents = list(yaml.safe_load_all(open(sys.argv[1]))); "
        "[k.validate(one, k.latest_version(), strict=True) for one in documents]; "
        "print(json.dumps([one['kind'] for one in documents]))"
    )
    kinds = [checked(code, path) for path in sorted((EXAMPLES / "kubernetes").glob("*.yaml"))]
    assert kinds == [["HorizontalPodAutoscaler", "PodDisruptionBudget"], ["Deployment"], ["Service"]]


def test_the_page_shows_lines_of_the_deployment() -> None:
    page = (EXAMPLES.parents[1] / "docs" / "guides" / "production.md").read_text("utf-8")
    shown = page.partition("```yaml\n")[2].partition("```")[0].splitlines()
    lines = (EXAMPLES / "kubernetes" / "deployment.yaml").read_text("utf-8").splitlines()
    assert [line for line in shown if line.strip() and line not in lines] == []


def test_pods_drain_before_they_are_killed() -> None:
    pod = manifests()["Deployment"]["spec"]["template"]["spec"]
    container = pod["containers"][0]
    variables = {one["name"]: one["value"] for one in container["env"] if one["name"].startswith("WHITEN_SERVE_")}
    options, _ = resolved([], variables)
    assert options["drain"] < options["grace"] < pod["terminationGracePeriodSeconds"]
    assert options["drain"] + options["grace"] < pod["terminationGracePeriodSeconds"]
    readiness = container["readinessProbe"]
    assert readiness["periodSeconds"] * readiness["failureThreshold"] < options["drain"]
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert container["securityContext"]["readOnlyRootFilesystem"] is True


def test_probes_and_metrics_are_there(tiny_bundle: Path) -> None:
    found = manifests()
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
    assert parse_address(options["listen"]) == 3
    assert options["drain"] + options["grace"] < float(fields["TimeoutStopSec"])
    assert fields["Type"] == "notify"
