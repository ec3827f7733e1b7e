"""Clients that programs generate from GET /openapi.json, in Python and in TypeScript, embed a text."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.once import installed_environment
from support.server import RunningServer
from support.vectors import assert_near
from whiten import Encoder

pytestmark = [pytest.mark.slow, pytest.mark.clients]

HERE = Path(__file__).parent
TEXT = "Herons stand still in the water – 日本 👩‍👧"

PYTHON = """
import json, sys
from generated import AuthenticatedClient
from generated.api.ollama import post_api_embed
from generated.api.open_ai import post_v1_embeddings
from generated.api.tei import post_embed
from generated.models import EmbedRequest, EmbeddingsRequest, OllamaEmbedRequest

address, text = sys.argv[1:]
with AuthenticatedClient(address, "key") as client:
    openai = post_v1_embeddings.sync(client=client, body=EmbeddingsRequest(input_=text))
    tei = post_embed.sync(client=client, body=EmbedRequest(inputs=[text]))
    ollama = post_api_embed.sync(client=client, body=OllamaEmbedRequest(input_=[text]))
    refused = post_v1_embeddings.sync(client=client, body=EmbeddingsRequest(input_=[]))
print(json.dumps([openai.data[0].embedding, tei[0], ollama.embeddings[0], refused.error.code]))
"""

TYPESCRIPT = """
import createClient from 'openapi-fetch';
import type { paths } from './api.js';

declare const process: { argv: string[] };
const [address, text] = process.argv.slice(2) as [string, string];
const client = createClient<paths>({ baseUrl: address, headers: { authorization: 'Bearer key' } });
const openai = await client.POST('/v1/embeddings', { body: { input: text } });
const path = { model: 'tiny' };
const tei = await client.POST('/models/{model}/embed', { params: { path }, body: { inputs: [text] } });
const ollama = await client.POST('/api/embed', { body: { input: [text] } });
const refused = await client.POST('/v1/embeddings', { body: { input: [] } });
// @ts-expect-error: a number is no text
await client.POST('/embed', { body: { inputs: 3 } });
const vector: number[] | string | undefined = openai.data?.data[0]?.embedding;
const code: string | undefined = refused.error?.error.code;
console.log(JSON.stringify([vector, tei.data?.[0], ollama.data?.embeddings[0], code]));
"""


@pytest.fixture(scope="module")
def server(golden: Path) -> Iterator[RunningServer]:
    variables = {"WHITEN_API_KEY": "key", "WHITEN_SERVE_LOG": "off"}
    with RunningServer(f"tiny={golden / 'bundle-v1'}", variables=variables) as running:
        yield running


@pytest.fixture(scope="module")
def document(server: RunningServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("document") / "openapi.json"
    path.write_bytes(server.call("GET", "/openapi.json", headers={"x-api-key": "key"}).raise_for_status().content)
    return path


def run(*command: object, cwd: Path) -> str:
    done = subprocess.run(list(map(str, command)), cwd=cwd, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(printed: str, golden: Path) -> None:
    openai, tei, ollama, code = json.loads(printed)
    with Encoder(golden / "bundle-v1") as encoder:
        plain, unit = (encoder.encode([TEXT], normalize_embeddings=one) for one in (False, True))
    assert_near([openai], plain)
    assert_near([tei], unit)
    assert_near([ollama], unit)
    assert code == "empty_input"


def test_a_client_of_openapi_python_client(server: RunningServer, document: Path, golden: Path) -> None:
    python = installed_environment("serving-generated", HERE / "requirements-generated.txt")
    folder = document.parent
    words = "generate", "--path", document, "--output-path", folder / "generated", "--meta", "none", "--fail-on-warning"
    environment = os.environ | {"PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [str(python.with_name("openapi-python-client")), *map(str, words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    check(run(python, "-c", PYTHON, str(server.client.base_url), TEXT, cwd=folder), golden)


def test_a_client_of_openapi_typescript(
    server: RunningServer, document: Path, golden: Path, tmp_path: Path, node_modules: Path
) -> None:
    (tmp_path / "node_modules").symlink_to(node_modules)
    (tmp_path / "client.ts").write_text(TYPESCRIPT, "utf-8")
    (tmp_path / "package.json").write_text('{"type": "module"}', "utf-8")
    run("node", node_modules / "openapi-typescript/bin/cli.js", document, "-o", "api.d.ts", cwd=tmp_path)
    options = "--strict", "--noUncheckedIndexedAccess", "--target", "es2022", "--module", "nodenext", "--skipLibCheck"
    compiler = node_modules / "typescript/bin/tsc"
    run("node", compiler, *options, "--lib", "es2022,dom,dom.iterable", "client.ts", cwd=tmp_path)
    check(run("node", "client.js", str(server.client.base_url).rstrip("/"), TEXT, cwd=tmp_path), golden)
