"""Options of `whiten serve`: on the command line, in the environment and in a file of TOML, without a server."""

import subprocess
import sys
from pathlib import Path

import click
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
    Address,
    Measure,
    Settings,
    parse_address,
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
    lines = ["max-texts = 1", 'max-wait = "500ms"', "drain = 7", "verify = false", '[models]\nfrom-file = "b"']
    file.write_text("\n".join(lines), "utf-8")
    variables = {"WHITEN_SERVE_MAX_TEXTS": "2", "WHITEN_SERVE_CONFIG": str(file), "WHITEN_SERVE_DRAIN": "2m"}
    assert called("--max-texts", 3, **variables).exit_code == 0
    assert served.given is not None
    settings, models = served.given
    assert (settings.max_texts, settings.drain, settings.max_wait, settings.verify) == (3, 120.0, 0.5, False)
    assert models == {"from-file": "b"}
    assert called(**variables, WHITEN_SERVE_MODELS="a=x y").exit_code == 0
    assert served.given[0].max_texts == 2
    assert served.given[1] == {"a": "x", "y": "y"}


def test_settings_of_the_file_alone(served: Served, tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    lines = [
        'cors-origins = ["https://a.example"]',
        "normalize = false",
        'on-long = "error"',
        'log = "off"',
        "listen = 80",
    ]
    file.write_text("\n".join(lines), "utf-8")
    assert called("b", "--config", file, "--max-body", "16MiB").exit_code == 0
    assert served.given is not None
    settings = served.given[0]
    assert (settings.cors_origins, settings.listen) == (("https://a.example",), "80")
    assert (settings.max_body, settings.normalize, settings.on_long, settings.log) == (2**24, False, "error", "off")


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
    ("arguments", "message"),
    [
        ([], "there is no model to serve"),
        (["b", "--listen", "fd:３"], "listen is 'fd:３'; wanted HOST:PORT"),
        (["b", "--listen", "８０８０"], "listen is '８０８０'; wanted HOST:PORT"),
        (["b", "--listen", "high"], "listen is 'high'; wanted HOST:PORT, PORT, [IPV6]:PORT, unix:PATH or fd:NUMBER"),
        (["b", "--listen", "::1:80"], "listen is '::1:80'"),
        (["b", "--listen", "a:70000"], "listen is 'a:70000'"),
        (["b", "--max-wait", "soon"], "max_wait is 'soon'; wanted a number such as 30, 2.5, 500ms or 2m"),
        (["b", "--max-wait", "0"], "max_wait is '0'"),
        (["b", "--timeout", "8d"], "timeout is '8d'"),
        (["b", "--max-body", "5 apples"], "max_body is '5 apples'"),
        (["b", "--max-texts", "2.5"], "max_texts is '2.5'; wanted a number such as 2048"),
        (["b", "--metrics-listen", "high"], "metrics_listen is 'high'; wanted HOST:PORT"),
        (["b", "--on-long", "error"], "No such option"),
        (["b", "--log", "xml"], "--log"),
        (["a=b", "a=c"], "two models are called 'a'"),
        (["/"], "has no name that a request can use"),
    ],
)
def test_what_cannot_be_used_is_told(served: Served, arguments: list[str], message: str) -> None:
    result = called(*arguments)
    assert result.exit_code == 2
    assert message in result.output
    assert served.given is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("drian = 5", "there is no setting 'drian'; did you mean drain?"),
        ("max_texts = 5", "there is no setting 'max_texts'; did you mean max-texts?"),
        ("models = 3", "wanted bundles in models"),
        ("[models]\na = 3", "wanted bundles in models"),
        ("= 3", "not TOML"),
        (f"max-texts = {'9' * 5000}", "not TOML"),
        ('max-texts = "many"', "max_texts is 'many'"),
        ('memory-limit = "8 apples"', "memory_limit is '8 apples'; wanted a number such as 0, 8GB or 16GiB, from 0"),
        ("memory-limit = true", "memory_limit is True; wanted a number"),
        ("memory-limit = [8]", "memory_limit is (8,); wanted a number"),
        ("listen = 80800", "listen is 80800; wanted HOST:PORT"),
        ("page = 0", "page is 0; wanted"),
        ('verify = "false"', "verify is 'false'; wanted"),
        ("metrics-listen = [9090]", "metrics_listen is (9090,); wanted HOST:PORT"),
        ("tls = true", "tls is True; wanted the path of a file"),
        ("api-key-file = 3", "api_key_file is 3; wanted the path of a file"),
        ("device = 0", "device is 0; wanted a name"),
        ('api-keys = ["k"]', "there is no setting 'api-keys'"),
        ('on-long = "cut"', "on_long is 'cut'; wanted"),
        ("listen = true", "listen is True; wanted HOST:PORT"),
        ("socket-group = 0", "socket_group is 0; wanted the name of a group"),
        ('cors-origins = "*"', "cors_origins is not a tuple (in a file, a list) of strings"),
    ],
)
def test_files_that_cannot_be_used(served: Served, tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text, "utf-8")
    result = called("b", "--config", file)
    assert (result.exit_code, served.given) == (2, None)
    assert message in result.output
    assert "No such file" in called("b", "--config", tmp_path / "none").output


def test_an_application_has_no_settings_of_the_process(tiny: Encoder) -> None:
    encoder = AsyncEncoder(tiny)
    told = asked(encoder.asgi_app("tiny"), "GET", "/info").json()["whiten"]["options"]
    others = set(SETTINGS) - set(told)
    assert {"listen", "tls", "parser", "max_wait", "device", "drain"} < others
    for name in others:
        with pytest.raises(UsageError, match=f"there is no setting '{name}'"):
            encoder.asgi_app("tiny", **{name: SETTINGS[name].default})


@pytest.mark.slow
def test_settings_are_read_where_python_leaves_docstrings_out() -> None:
    code = "from whiten_serving.settings import SETTINGS; print(SETTINGS['max_texts'].check('7'))"
    found = subprocess.run([sys.executable, "-OO", "-c", code], env=environment(), capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (0, "7\n"), found.stderr


def test_options_are_few() -> None:
    options = {str(one.name) for one in serve.params if isinstance(one, click.Option)}
    assert options == {
        *("config", "listen", "metrics_listen", "tls", "api_key_file", "keep_alive", "max_wait", "max_texts"),
        *("max_body", "max_in_flight", "timeout", "log", "page", "device", "verify", "drain", "grace"),
    }


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("example.org:80", ("example.org", 80)),
        ("0", ("127.0.0.1", 0)),
        ("[::1]:8080", ("::1", 8080)),
        ("unix:/run/a b:c", "/run/a b:c"),
        ("fd:3", 3),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert parse_address(text) == address


def test_keys(tmp_path: Path) -> None:
    def keys(text: bytes, environment: dict[str, str] | None = None) -> dict[str, str]:
        file = tmp_path / "keys"
        file.write_bytes(text)
        return read_keys(str(file), environment or {}, lambda message: None)

    both = keys(b"# comment\n\nfrom-file\n", {"WHITEN_API_KEY": "one, two,one"})
    assert list(both) == ["one", "two", "from-file"]
    assert set(both.values()) == {""}
    assert list(keys("# of Ann\u2028old-key\r\n# and\x85old-key\x0cold-key\rnew-key\n".encode())) == ["new-key"]
    for text, error, message in (
        (b"\n# nothing\n", DataError, "holds no key"),
        ("a\nschlüssel\n".encode(), DataError, "line 2"),
        (b"\xff\xfe", DataError, "not a text"),
    ):
        with pytest.raises(error, match=message):
            keys(text)
    for blank in ("", " , ", "schlüssel", "one,t wo", "a\tb"):
        with pytest.raises(UsageError, match="WHITEN_API_KEY holds no key"):
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
    with pytest.raises(DataError, match=r"keys, line [23]: wanted KEY, NAME KEY or NAME:KEY") as caught:
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
        with pytest.raises(UsageError, match="give one, as in model=run=3"):
            read_models([written], told.append)
    assert read_models([f"model={written}"], pytest.fail) == {"model": written}
    Path(written).rmdir()
    assert read_models([written], pytest.fail) == {name: bundle}
