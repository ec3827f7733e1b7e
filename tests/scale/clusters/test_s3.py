"""Test `whiten embed-many` from and to a server of S3: output as on a disk, resumed, and what is refused."""

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.bundles import contents
from support.cli import ok
from support.clusters import EMBED, environment, in_shards, packages, running, started, until
from support.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.clients]


@pytest.fixture(scope="module")
def env(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a process that has a bucket."""
    port, log = free_port(), tmp_path_factory.mktemp("s3") / "log"
    program = f"from moto.server import main; main(['-H', '127.0.0.1', '-p', '{port}'])"
    address = f"http://127.0.0.1:{port}"
    with started([sys.executable, "-c", program], environment(packages("moto")), log):
        until(lambda: answers(f"{address}/moto-api/data.json"), log)
        urllib.request.urlopen(urllib.request.Request(f"{address}/bucket", method="PUT"), timeout=60).close()
        keys = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
        yield environment(packages("s3"), AWS_ENDPOINT_URL=address, **keys)


def answers(url: str) -> bool:
    try:
        urllib.request.urlopen(url, timeout=60).close()
    except OSError:
        return False
    return True


def copy(env: dict[str, str], call: str) -> None:
    """Copy files with fsspec's own client."""
    program = f"import s3fs; s3fs.S3FileSystem().{call}"
    done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_output_is_that_of_a_disk(
    env: dict[str, str], tiny_bundle: Path, filled: Path, tmp_path: Path, texts_per_shard: Callable[[int], None]
) -> None:
    texts_per_shard(64)
    copy(env, f"put('{filled}/', 'bucket/in/', recursive=True)")
    options = ("--id", "id", "--keep", "text", "--workers", 2, "--json")
    arguments = (tiny_bundle, "--input", "s3://bucket/in", "--out", "s3://bucket/out", *options)
    done = running(in_shards(EMBED, 64), *arguments, env=env)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    wanted = json.loads(ok("embed-many", tiny_bundle, "--input", filled, "--out", tmp_path / "out", *options).stdout)
    assert (found["rows"], found["key"]) == (400, wanted["key"])
    copy(env, f"get('bucket/out/', '{tmp_path}/fetched/', recursive=True)")
    for name, content in contents(tmp_path / "out").items():
        if name.endswith(".parquet"):
            assert (tmp_path / "fetched" / name).read_bytes() == content
    again = running(in_shards(EMBED, 64), *arguments, env=env)
    assert json.loads(again.stdout)["embedded"] == 0, again.stderr
    changed = (filled / "c.tsv").read_bytes().replace(b"t205\t", b"t206\t")
    copy(env, f"pipe_file('bucket/in/c.tsv', {changed!r})")
    done = running(in_shards(EMBED, 64), *arguments, env=env)
    assert (done.returncode, "'t205'" in done.stderr) == (2, True), done.stderr
    grown = (filled / "c.tsv").read_bytes() + b"\r\nnew\ta new text\ttalk"
    copy(env, f"pipe_file('bucket/in/c.tsv', {grown!r})")
    done = running(in_shards(EMBED, 64), *arguments, env=env)
    assert json.loads(done.stdout)["rows"] == 401, done.stderr
    copy(env, f"get('bucket/out/', '{tmp_path}/grown/', recursive=True)")
    assert {path.name for path in (tmp_path / "grown").iterdir()} >= {"_SUCCESS", "_plan-0001.json"}


def test_one_line_where_the_store_refuses(env: dict[str, str], tiny_bundle: Path, filled: Path) -> None:
    cases = [
        (("--input", "s3://nowhere/in", "--out", "s3://bucket/new"), 2, "'s3://nowhere/in' does not exist"),
        (("--input", filled, "--out", "s3://nowhere/new"), 1, "s3://nowhere/new/_plan.json: cannot be written ("),
    ]
    for arguments, code, message in cases:
        done = running(EMBED, tiny_bundle, *arguments, env=env)
        assert (done.returncode, message in done.stderr) == (code, True), done.stderr
        assert "Traceback" not in done.stderr
    assert os.environ.get("AWS_ENDPOINT_URL") != env["AWS_ENDPOINT_URL"]
