"""Options of `whiten serve`: on the command line, in the environment and in a file of TOML, without a server."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from support.asgi import asked
from support.server import environment
from whiten import AsyncEncoder, Encoder
from whiten_runtime.errors import DataError, UsageError
from whiten_serving.commands.serve import serve
from whiten_serving.settings import (
    COUNT,
    SECONDS,
    SECONDS_OR_0,
    SETTINGS,
    SIZE,
    SIZE_OR_0,
    Measure,
    Settings,
    read_keys,
    read_models,
)

MEASURES = (COUNT, SIZE, SIZE_OR_0, SECONDS, SECONDS_OR_0)


class Served:
    """Stands for the module that runs the process, and keeps what it was given."""

    def __init__(self) -> None:
        self.given: tuple[Settings, dict[str, str]] | None = None

    def serve(self, settings: Settings, bundles: dict[str, str], hang_ups: list[int]) -> None:
        self.given = settings, bundles


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> Served:
    process = Served()
    monkeypatch.setitem(sys.modules, "whiten_serving.process", process)  # type: ignore[arg-type]
    return process


def called(*arguments: object, **variables: str) -> Result:
    return CliRunner().invoke(serve, [str(one) for one in arguments], env=variables)


def test_defaults_are_those_of_the_settings(served: Served) -> None:
    result = called("bundles/minilm")
    assert result.exit_code == 0, result.output
    assert served.given == (Settings(api_keys={}, log="json"), {"minilm": "bundles/minilm"})


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    lines = ["max-texts = 1", 'max-wait = "500ms"', "drain = 7", "verify = false", "listen = 80"]
    lines += ['cors-origins = ["https://a.example"]', '[models]\nfrom-file = "b"']
    file.write_text("\n".join(lines), "utf-8")
    variables = {"WHITEN_SERVE_MAX_TEXTS": "2", "WHITEN_SERVE_CONFIG": str(file), "WHITEN_SERVE_DRAIN": "2m"}
    assert called("--max-texts", 3, **variables).exit_code == 0
    assert served.given is not None
    settings, models = served.given
    assert (settings.max_texts, settings.drain, settings.max_wait, settings.verify) == (3, 120.0, 0.5, False)
    assert (settings.listen, settings.cors_origins) == ("80", ("https://a.example",))
    assert models == {"from-file": "b"}
    assert called(**variables, WHITEN_SERVE_MODELS="a=x y").exit_code == 0
    assert served.given[0].max_texts == 2
    assert served.given[1] == {"a": "x", "y": "y"}


@pytest.mark.parametrize(
    ("name", "measure"), [(setting.name, setting.kind) for setting in SETTINGS.values() if setting.kind in MEASURES]
)
def test_a_number_in_a_file_may_have_its_unit(served: Served, tmp_path: Path, name: str, measure: Measure) -> None:
    number, text = measure.example.split()[-1], f"{name.replace('_', '-')} = "
    for written, value in ((f'"{number}"', measure.read(name, number)), ("17", 17)):
        (tmp_path / "serve.toml").write_text(text + written, "utf-8")
        result = called("b", "--config", tmp_path / "serve.toml")
        assert served.given is not None, result.output
        assert getattr(served.given[0], name) == value


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ([], "model"),
        (["b", "--listen", "fd:３"], "fd:３"),
        (["b", "--listen", "８０８０"], "８０８０"),
        (["b", "--listen", "::1:80"], "::1:80"),
        (["b", "--listen", "a:65536"], "a:65536"),
        (["b", "--max-wait", "soon"], "max_wait"),
        (["b", "--max-wait", "0"], "max_wait"),
        (["b", "--max-body", "5 apples"], "max_body"),
        (["b", "--max-texts", "2.5"], "max_texts"),
        (["b", "--metrics-listen", "high"], "metrics_listen"),
        (["b", "--on-long", "error"], "--on-long"),
        (["b", "--log", "xml"], "--log"),
        (["a=b", "a=c"], "'a'"),
        (["/"], "'/'"),
    ],
)
def test_what_cannot_be_used_is_told(served: Served, arguments: list[str], name: str) -> None:
    result = called(*arguments)
    assert (result.exit_code, served.given) == (2, None)
    assert name in result.output


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("drian = 5", "drian"),
        ("max_texts = 5", "max_texts"),
        ("models = 3", "models"),
        ("[models]\na = 3", "models"),
        ("= 3", "serve.toml"),
        (f"max-texts = {'9' * 5000}", "serve.toml"),
        ('max-texts = "many"', "max_texts"),
        ("memory-limit = true", "memory_limit"),
        ("memory-limit = [8]", "memory_limit"),
        ("listen = 80800", "listen"),
        ("listen = true", "listen"),
        ('verify = "false"', "verify"),
        ("metrics-listen = [9090]", "metrics_listen"),
        ("tls = true", "tls"),
        ("device = 0", "device"),
        ('api-keys = ["k"]', "api-keys"),
        ('on-long = "cut"', "on_long"),
        ("socket-group = 0", "socket_group"),
        ('cors-origins = "*"', "cors_origins"),
    ],
)
def test_files_that_cannot_be_used(served: Served, tmp_path: Path, text: str, name: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text, "utf-8")
    result = called("b", "--config", file)
    assert (result.exit_code, served.given) == (2, None)
    assert name in result.output
    assert called("b", "--config", tmp_path / "none").exit_code == 2


def test_an_application_has_no_settings_of_the_process(tiny: Encoder) -> None:
    encoder = AsyncEncoder(tiny)
    told = asked(encoder.asgi_app("tiny"), "GET", "/info").json()["whiten"]["options"]
    others = set(SETTINGS) - set(told)
    assert {"listen", "tls", "parser", "max_wait", "device", "drain"} < others
    for name in others:
        with pytest.raises(UsageError, match=name):
            encoder.asgi_app("tiny", **{name: SETTINGS[name].default})


@pytest.mark.slow
def test_settings_are_read_where_python_leaves_docstrings_out() -> None:
    code = "from whiten_serving.settings import SETTINGS; print(SETTINGS['max_texts'].check('7'))"
    found = subprocess.run([sys.executable, "-OO", "-c", code], env=environment(), capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "7\n"), found.stderr


def test_keys(tmp_path: Path) -> None:
    def keys(text: bytes, environment: dict[str, str] | None = None) -> dict[str, str]:
        file = tmp_path / "keys"
        file.write_bytes(text)
        return read_keys(str(file), environment or {}, lambda message: None)

    both = keys(b"# comment\n\nfrom-file\n", {"WHITEN_API_KEY": "one, two,one"})
    assert list(both) == ["one", "two", "from-file"]
    assert set(both.values()) == {""}
    assert list(keys("# of Ann\u2028old-key\r\n# and\x85old-key\x0cold-key\rnew-key\n".encode())) == ["new-key"]
    for text in (b"\n# nothing\n", "a\nschlüssel\n".encode(), b"\xff\xfe"):
        with pytest.raises(DataError, match=str(tmp_path / "keys")):
            keys(text)
    for blank in ("", " , ", "schlüssel", "one,t wo", "a\tb"):
        with pytest.raises(UsageError, match="WHITEN_API_KEY"):
            read_keys(None, {"WHITEN_API_KEY": blank}, print)
    assert read_keys(None, {}, print) == {}


@pytest.mark.parametrize(
    ("line", "key", "name"),
    [
        ("alice k-1", "k-1", "alice"),
        ("alice:k-1", "k-1", "alice"),
        ("alice: k-1", "k-1", "alice"),
        ("  alice\tk-1 \r", "k-1", "alice"),
        ("alice a:b:c", "a:b:c", "alice"),
        ("alice:b:c", "b:c", "alice"),
        ("a.b_c@d-e k#1", "k#1", "a.b_c@d-e"),
        ("k-1", "k-1", ""),
        ("/+=k", "/+=k", ""),
    ],
)
def test_a_key_may_have_a_name(tmp_path: Path, line: str, key: str, name: str) -> None:
    (tmp_path / "keys").write_text(f"# keys\n\n{line}\nother\nbob other-2\nalice new\n", "utf-8")
    found = read_keys(str(tmp_path / "keys"), {"WHITEN_API_KEY": "a:b,other-2"}, lambda message: None)
    assert found[key] == name
    assert (found["other"], found["other-2"], found["a:b"], found["new"]) == ("", "bob", "", "alice")


@pytest.mark.parametrize(
    "line",
    [
        "alice:",
        "alice: ",
        ":key",
        " : ",
        "sk/1:key",
        "alice bob key",
        "a:b c",
        "ä key",
        "x" * 65 + " key",
        "one a\ntwo a",
        "a\none a",
    ],
)
def test_a_line_that_is_no_key_is_refused_without_showing_it(tmp_path: Path, line: str) -> None:
    (tmp_path / "keys").write_text(f"first\n{line}\n", "utf-8")
    with pytest.raises(DataError, match=r"keys, line [23]") as caught:
        read_keys(str(tmp_path / "keys"), {}, print)
    assert "alice" not in str(caught.value)
    assert "sk/1" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "name"), [("b/minilm", "minilm"), ("hf://org/name@v1", "name"), ("x=y=z", "x"), ("./b/", "b")]
)
def test_names_of_models(written: str, name: str) -> None:
    assert list(read_models([written], pytest.fail)) == [name]


@pytest.mark.parametrize("written", ["sweeps/run=3/minilm", "run=3"])
def test_a_directory_with_an_equals_sign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str) -> None:
    monkeypatch.chdir(tmp_path)
    told: list[str] = []
    name, _, bundle = written.partition("=")
    if "/" not in name:
        assert read_models([written], told.append) == {name: bundle}
    Path(written).mkdir(parents=True)
    Path(bundle).mkdir(parents=True)
    if written.endswith("minilm"):
        assert read_models([written], told.append) == {"minilm": written}
        assert written in told[0]
        assert read_models([f"./{written}"], pytest.fail) == {"minilm": f"./{written}"}
    else:
        with pytest.raises(UsageError, match="run=3"):
            read_models([written], told.append)
    assert read_models([f"model={written}"], pytest.fail) == {"model": written}
    Path(written).rmdir()
    assert read_models([written], pytest.fail) == {name: bundle}
