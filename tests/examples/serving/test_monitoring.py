"""The dashboard for Grafana and the alert rules for Prometheus: each metric and label in them is one of /metrics.

Where promtool is installed (Debian's package prometheus), it reads the queries, and the alerts fire on what they name.
"""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.server import RunningServer, until

pytestmark = pytest.mark.slow

EXAMPLES = Path(__file__).parents[3] / "examples" / "serving"
RULES = EXAMPLES / "prometheus" / "alerts.yaml"

OF_PROMETHEUS = {"job", "instance"}
"""Labels that Prometheus adds to what it reads."""

_METRIC = re.compile(r"\b((?:whiten|process)_\w+)(?:\{([^}]*)\})?")


def board() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((EXAMPLES / "grafana" / "dashboard.json").read_text("utf-8"))
    return found


def rules() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text("utf-8"))["groups"] for rule in group["rules"]]


def targets() -> list[dict[str, str]]:
    return [target for panel in board()["panels"] for target in panel["targets"]]


def queries() -> list[str]:
    """Return all queries, with values in place of Grafana's variables."""
    drawn = [target["expr"].replace("$job", ".*").replace("$__rate_interval", "5m") for target in targets()]
    return drawn + [rule["expr"] for rule in rules()]


@pytest.fixture(scope="module")
def labels(tiny_bundle: Path) -> dict[str, set[str]]:
    """The labels of each metric of a server that has answered, refused and cut something."""
    with RunningServer(tiny_bundle, "--max-texts", 2) as server:
        assert server.embed("A text.").status_code == 200
        assert server.embed("word " * 5000).headers["x-whiten-truncated"] == "1"
        assert server.call("POST", "/embed", {"inputs": ["a"] * 3}).status_code == 413
        until(lambda: "whiten_batch_texts_sum 2.0" in server.call("GET", "/metrics").text)
        page = server.call("GET", "/metrics").text
    found: dict[str, set[str]] = {}
    for line in page.splitlines():
        if not line.startswith("#"):
            name, _, rest = re.split(r"(\{|(?= ))", line, maxsplit=1)
            found.setdefault(name, set()).update(re.findall(r'(\w+)="', rest))
    return found


def test_each_metric_and_label_is_one_of_the_server(labels: dict[str, set[str]]) -> None:
    for query in queries():
        named = _METRIC.findall(query)
        assert named, query
        grouped = [label.strip() for group in re.findall(r"\bby \(([^)]*)\)", query) for label in group.split(",")]
        for name, matchers in named:
            assert name in labels, (name, query)
            asked = [*re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers), *grouped]
            assert set(asked) <= labels[name] | OF_PROMETHEUS, (name, asked)


def test_queries_of_requests_leave_probes_out(tiny_bundle: Path) -> None:
    """A server that drains answers /ready with 503, which is no failure, and probes are faster than any text."""
    probes = ("/live", "/ready", "/health", "/ping", "/metrics")
    with RunningServer(tiny_bundle) as server:
        for path in probes:
            assert server.call("GET", path).status_code == 200
        page = server.call("GET", "/metrics").text
    counted = set(re.findall(r'whiten_requests_total\{.*route="([^"]*)"', page))
    assert counted == set(probes)
    for query in queries():
        for name, matchers in _METRIC.findall(query):
            if name.startswith(("whiten_requests_", "whiten_request_")):
                pattern = re.search(r'route!~"([^"]*)"', matchers)
                assert pattern, query
                assert {path for path in [*probes, "/embed"] if re.fullmatch(pattern[1], path)} == set(probes)


def test_the_dashboard_is_whole() -> None:
    panels = board()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels) >= 10
    places = [tuple(panel["gridPos"].values()) for panel in panels]
    assert len(set(places)) == len(panels)
    assert all(place[2] + place[1] <= 24 for place in places)
    variables = {one["name"] for one in board()["templating"]["list"]}
    for panel in panels:
        assert panel["datasource"]["uid"] == "${source}"
        for target in panel["targets"]:
            assert set(re.findall(r"\$\{?(\w+)", target["expr"])) <= variables | {"__rate_interval"}
            grouped = re.findall(r"\bby \(([^)]*)\)", target["expr"])
            kept = {label.strip() for group in grouped for label in group.split(",")}
            shown = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            assert shown <= (kept or OF_PROMETHEUS), target


def test_the_rules_say_what_they_mean() -> None:
    assert len(rules()) == 5
    for rule in rules():
        assert {"alert", "expr", "for", "labels", "annotations"} <= rule.keys()
        assert {"summary", "description"} == rule["annotations"].keys()


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed; apt-get install --no-install-recommends prometheus")
    return found


def test_prometheus_reads_all_queries(promtool: str, tmp_path: Path) -> None:
    recorded = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries())]
    (tmp_path / "all.yaml").write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": recorded}]}), "utf-8")
    for file in (RULES, tmp_path / "all.yaml"):
        done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_alerts_fire_on_what_they_name_and_on_nothing_else(promtool: str, tmp_path: Path) -> None:
    shutil.copy(RULES, tmp_path)
    tests = yaml.safe_load(Path(__file__).with_name("alerts_test.yaml").read_text("utf-8"))
    said = {rule["alert"]: rule["annotations"] for rule in rules()}
    for test in tests["tests"]:
        assert {one["alertname"] for one in test["alert_rule_test"]} == said.keys()
        for one in test["alert_rule_test"]:
            for alert in one.get("exp_alerts", ()):
                alert["exp_annotations"] = said[one["alertname"]]
    (tmp_path / "alerts_test.yaml").write_text(yaml.safe_dump(tests), "utf-8")
    command = [promtool, "test", "rules", tmp_path / "alerts_test.yaml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
