"""Test bulk work on a real cluster of Ray, of two nodes: bytes, a node that is lost, errors, Ray Serve."""

import json
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.bundles import contents
from support.cli import ok
from support.clusters import (
    EMBED,
    FIT,
    descendants,
    environment,
    in_shards,
    packages,
    running,
    started,
    until,
)
from support.ports import free_port
from whiten import Encoder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.clients,
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
]

RAY = "from ray.scripts.scripts import main; main()"
NODE = ("start", "--num-cpus=2", "--object-store-memory=100000000", "--disable-usage-stats", "--block")


class Cluster:
    """Holds a cluster whose first node has its control, and starts further nodes."""

    def __init__(self, env: dict[str, str], log: Path, stack: ExitStack) -> None:
        self.env, self._log, self._stack = env, log, stack
        port, temporary = free_port(), tempfile.mkdtemp(prefix="ray", dir="/tmp")  # names of sockets are short
        stack.callback(shutil.rmtree, temporary, ignore_errors=True)
        self.address = f"127.0.0.1:{port}"
        self._start("--head", f"--port={port}", "--include-dashboard=false", f"--temp-dir={temporary}")

    def add_node(self) -> int:
        """Start another node, and return the process that it belongs to."""
        return self._start(f"--address={self.address}")

    def _start(self, *options: str) -> int:
        log = self._log / f"node{len(list(self._log.iterdir()))}.log"
        process = self._stack.enter_context(started([sys.executable, "-c", RAY, *NODE, *options], self.env, log))
        until(lambda: b"Ray runtime started" in log.read_bytes(), log)
        return process.pid


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of two nodes with two CPUs each."""
    patient = dict.fromkeys(("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S"), "60")
    env = environment(packages("ray"), RAY_USAGE_STATS_ENABLED="0", **patient)
    with ExitStack() as stack:
        found = Cluster(env, tmp_path_factory.mktemp("ray"), stack)
        found.add_node()
        yield found


def embed(cluster: Cluster, bundle: Path, source: Path, out: Path, texts: int = 32) -> Any:
    common = ("--input", source, "--out", out, "--ray", cluster.address, "--json")
    done = running(in_shards(EMBED, texts), bundle, *common, env=cluster.env)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_files_are_those_of_one_machine(
    cluster: Cluster, tiny_bundle: Path, filled: Path, tmp_path: Path, texts_per_shard: Callable[[int], None]
) -> None:
    texts_per_shard(32)
    found = embed(cluster, tiny_bundle, filled, tmp_path / "ray")
    ok("embed-many", tiny_bundle, "--input", filled, "--out", tmp_path / "one", "--workers", 1)
    assert found["rows"] == 400
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")
    (tmp_path / "ray" / "part-000003.parquet").unlink()
    assert embed(cluster, tiny_bundle, filled, tmp_path / "ray")["embedded"] == 1
    assert contents(tmp_path / "ray") == contents(tmp_path / "one")


def test_statistics_are_those_of_one_machine(
    cluster: Cluster, tiny_bundle: Path, filled: Path, tmp_path: Path, texts_per_shard: Callable[[int], None]
) -> None:
    texts_per_shard(32)
    common = (tiny_bundle, "--corpus", filled)
    done = running(in_shards(FIT, 32), *common, "--out", tmp_path / "ray", "--ray", cluster.address, env=cluster.env)
    assert done.returncode == 0, done.stderr
    ok("fit", *common, "--out", tmp_path / "one", "--workers", 1)
    assert (tmp_path / "ray").read_bytes() == (tmp_path / "one").read_bytes()


def test_a_lost_node_loses_nothing(
    cluster: Cluster, tiny_bundle: Path, tmp_path: Path, texts_per_shard: Callable[[int], None]
) -> None:
    from concurrent.futures import ThreadPoolExecutor

    texts_per_shard(3000)
    source, out = tmp_path / "in.txt", tmp_path / "ray"
    source.write_text("".join(f"Text number {number} of many.\n" for number in range(60_000)), "utf-8")
    node = cluster.add_node()
    with ThreadPoolExecutor(1) as executor:
        future = executor.submit(embed, cluster, tiny_bundle, source, out, 3000)
        until(lambda: len(list(out.glob("part-*.parquet"))) > 3 or future.done(), source)
        for pid in descendants(node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        assert len(list(out.glob("part-*.parquet"))) < 20
        assert future.result()["rows"] == 60_000
    ok("embed-many", tiny_bundle, "--input", source, "--out", tmp_path / "one")
    assert contents(out) == contents(tmp_path / "one")


@pytest.mark.parametrize("name", ["OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM", "FOO"])
def test_a_job_may_have_variables_of_its_own(cluster: Cluster, tiny_bundle: Path, tmp_path: Path, name: str) -> None:
    """`ray job submit --runtime-env-json` gives its command this variable."""
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    job = json.dumps({"runtime_env": {"env_vars": {name: "4"}}})
    arguments = (tiny_bundle, "--input", tmp_path / "a.txt", "--out", tmp_path / "out", "--ray", cluster.address)
    done = running(EMBED, *arguments, env=cluster.env | {"RAY_JOB_CONFIG_JSON_ENV_VAR": job})
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "out").glob("part-*.parquet"))) == 1


def test_a_wrong_row_is_told_in_one_line(cluster: Cluster, tiny_bundle: Path, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('"one"\n7\n')
    arguments = (tiny_bundle, "--input", tmp_path / "a.jsonl", "--out", tmp_path / "out", "--ray", cluster.address)
    done = running(EMBED, *arguments, env=cluster.env)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("error: a.jsonl: row 2 holds the number 7; wanted a string")
    assert "Traceback" not in done.stderr


STAGE = """
import json, sys
import ray
from whiten.integrations.ray import Embed

address, bundle, out = sys.argv[1:]
ray.init(address, log_to_driver=False)
dataset = ray.data.from_items([{"id": number, "text": f"Text number {number}."} for number in range(300)])
options = {"normalize_embeddings": True}
dataset = dataset.repartition(6).map_batches(
    Embed, fn_constructor_args=(bundle,), fn_constructor_kwargs=options, concurrency=2, num_cpus=1
)
dataset.write_parquet(out)
"""


def test_a_stage_of_ray_data(cluster: Cluster, tiny: Encoder, tiny_bundle: Path, tmp_path: Path) -> None:
    import subprocess

    import pyarrow.parquet

    pytest.importorskip("pandas", reason="needs the extra test-all")
    command = [sys.executable, "-c", STAGE, cluster.address, str(tiny_bundle), str(tmp_path / "out")]
    done = subprocess.run(command, env=cluster.env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    table = pyarrow.parquet.read_table(tmp_path / "out").sort_by("id")
    assert table["id"].to_pylist() == list(range(300))
    wanted = tiny.encode(table["text"].to_pylist(), normalize_embeddings=True)
    np.testing.assert_allclose(np.stack(table["embedding"].to_numpy()), wanted, atol=1e-5)


SERVED = """
import json, sys, urllib.request
import ray
from ray import serve
from whiten_scale.ray import application

address, bundle, port = sys.argv[1:]
ray.init(address, log_to_driver=False)
serve.start(http_options={"host": "127.0.0.1", "port": int(port)})
handle = serve.run(application(bundle, replicas=2))
texts = ["A text.", "Another."]
found = {"handle": handle.encode.remote(texts, normalize_embeddings=True).result().tolist()}
request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/embeddings", json.dumps({"input": texts}).encode())
request.add_header("content-type", "application/json")
with urllib.request.urlopen(request) as answer:
    found["http"] = [one["embedding"] for one in json.load(answer)["data"]]
serve.shutdown()
print(json.dumps(found))
"""


def test_ray_serve(cluster: Cluster, tiny: Encoder, tiny_bundle: Path) -> None:
    import subprocess

    pytest.importorskip("orjson")
    command = [sys.executable, "-c", SERVED, cluster.address, str(tiny_bundle), str(free_port())]
    done = subprocess.run(command, env=cluster.env, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    found, texts = json.loads(done.stdout.splitlines()[-1]), ["A text.", "Another."]
    np.testing.assert_allclose(found["handle"], tiny.encode(texts, normalize_embeddings=True), atol=1e-5)
    np.testing.assert_allclose(found["http"], tiny.encode(texts), atol=1e-4)
