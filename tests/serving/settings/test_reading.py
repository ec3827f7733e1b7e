"""Where settings come from, and which source goes first."""

import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from whiten_runtime.errors import DataError, UsageError
from whiten_serving.settings.models import ModelChoice
from whiten_serving.settings.reading import Given, from_command_line, from_environment, from_file, resolve
from whiten_serving.settings.table import Settings, options


def file_of(path: Path, text: str) -> Given:
    file = path / "serve.toml"
    file.write_text(text, "utf-8")
    return from_file(file)


def test_every_field_is_an_option_whose_default_is_of_its_kind() -> None:
    assert [option.name for option in options()] == [item.name for item in fields(Settings)]
    for option in options():
        if option.default not in (None, ()):
            raw = option.default if isinstance(option.default, (str, *option.kind.native)) else str(option.default)
            assert option.kind.value(raw) == option.default, option.name


def test_what_docs_show_as_default_is_the_default() -> None:
    for option in options():
        if option.default not in (None, ()):
            assert option.kind.value(option.shown) == option.default, option.name


def test_the_command_line_goes_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    toml = file_of(tmp_path, 'port = 1\nhost = "file"\nmax-texts = 7\ndrain = "1s"\n[models]\nfile = "bundles/file"\n')
    environment = from_environment({"WHITEN_SERVE_PORT": "2", "WHITEN_SERVE_HOST": "environment", "PATH": "/bin"})
    line = from_command_line({"port": "3", "host": None, "cors_origin": ()}, ["line=bundles/line"])
    settings, models = resolve([line, environment, toml])
    assert (settings.port, settings.host, settings.max_texts, settings.drain) == (3, "environment", 7, 1.0)
    assert settings.grace == Settings().grace
    assert models == (ModelChoice("line", "bundles/line"),)
    assert resolve([environment, toml])[1] == (ModelChoice("file", "bundles/file"),)


def test_no_flag_of_the_command_line_overrides_true_of_the_file(tmp_path: Path) -> None:
    toml = file_of(tmp_path, "verify = true\nnormalize = true\n")
    settings, _ = resolve([from_command_line({"verify": False, "normalize": None}, ["a"]), toml])
    assert settings.verify is False
    assert settings.normalize is True


def test_models_of_the_environment() -> None:
    given = from_environment({"WHITEN_SERVE_MODELS": "one=/bundles/a '/with blank/two'"})
    assert resolve([given])[1] == (ModelChoice("one", "/bundles/a"), ModelChoice("two", "/with blank/two"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot = 80", "there is no option 'prot'; did you mean port?"),
        ("max_texts = 5", "there is no option 'max_texts'; did you mean max-texts?"),
        ("zzz = 5", "there is no option 'zzz'; see whiten serve --help"),
        ('port = "high"', "serve.toml: port is 'high'; wanted a whole number from 0 to 65535"),
        ("port = true", "serve.toml: port is True; wanted a whole number"),
        ("host = 80", "serve.toml: host is 80; wanted a text"),
        ("models = 5", "models is 5; wanted a table"),
        ("[models]\na = 5", "models.a is 5; wanted the path"),
        ("port = ", "not TOML"),
        pytest.param("x = " + "[" * 100_000, "nested too deeply", id="deep"),
    ],
)
def test_files_that_are_not_understood(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises((UsageError, DataError)) as caught:
        resolve([file_of(tmp_path, text), from_command_line({}, ["bundle"])])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="No such file"):
        from_file(tmp_path / "none.toml")


def test_a_variable_that_is_no_option() -> None:
    with pytest.raises(UsageError, match="there is no variable WHITEN_SERVE_PROT; did you mean WHITEN_SERVE_PORT"):
        from_environment({"WHITEN_SERVE_PROT": "80"})


def test_models_of_the_environment_that_no_shell_would_read() -> None:
    with pytest.raises(UsageError, match="WHITEN_SERVE_MODELS is .* No closing quotation"):
        from_environment({"WHITEN_SERVE_MODELS": '"abc'})


def test_an_address_beside_a_socket_of_the_same_source(tmp_path: Path) -> None:
    for name, value in (("port", "9"), ("host", "::1")):
        with pytest.raises(UsageError, match=f"--uds and --{name} were given together"):
            resolve([from_command_line({"uds": "/a", name: value}, ["a"])])
    image = from_environment({"WHITEN_SERVE_HOST": "0.0.0.0"})
    assert resolve([from_command_line({"uds": "/a"}, ["a"]), image])[0].uds == "/a"


def test_the_source_of_a_bad_value_is_named() -> None:
    with pytest.raises(UsageError, match="WHITEN_SERVE_PORT is 'x'"):
        resolve([from_environment({"WHITEN_SERVE_PORT": "x"})])
    with pytest.raises(UsageError, match="--max-body is '5 weeks'"):
        resolve([from_command_line({"max_body": "5 weeks"}, ["a"])])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"uds": "/a", "fd": "3"}, "--uds and --fd"),
        ({"tls_cert": "a.pem"}, "--tls-cert was given without --tls-key"),
        ({"tls_key": "a.pem"}, "--tls-key was given without --tls-cert"),
        ({"token_ids": "cl100k"}, "cl100k=FILE"),
    ],
)
def test_options_that_do_not_go_together(values: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve([from_command_line(values, ["a"])])


@pytest.mark.parametrize(
    ("written", "name", "bundle"),
    [
        ("bundles/minilm-l1-l6", "minilm-l1-l6", "bundles/minilm-l1-l6"),
        ("/bundles/minilm/", "minilm", "/bundles/minilm/"),
        ("small=/bundles/a=b", "small", "/bundles/a=b"),
        ("hf://org/name@v1", "name", "hf://org/name@v1"),
        ("org/model=hf://org/name", "org/model", "hf://org/name"),
    ],
)
def test_names_of_models(written: str, name: str, bundle: str) -> None:
    assert resolve([from_command_line({}, [written])])[1] == (ModelChoice(name, bundle),)


def test_the_name_of_the_current_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my-model").mkdir()
    monkeypatch.chdir(tmp_path / "my-model")
    assert resolve([from_command_line({}, ["."])])[1] == (ModelChoice("my-model", "."),)


@pytest.mark.parametrize("written", [[], ["a", "b/a"], ["x=a", "x=b"], ["bundles/hé llo"]])
def test_models_that_cannot_be_served(written: list[str]) -> None:
    with pytest.raises(UsageError):
        resolve([from_command_line({}, written)])


def test_every_key_of_toml_can_be_written(tmp_path: Path) -> None:
    lines = [f'{option.key} = "{option.shown}"' for option in options() if option.default not in (None, ())]
    text = "\n".join(lines)
    assert tomllib.loads(text)
    settings, _ = resolve([file_of(tmp_path, text), from_command_line({}, ["a"])])
    assert settings == Settings()


def test_variables_of_kubernetes_are_left_out() -> None:
    """A service called whiten-serve gives all pods variables that look like options."""
    links = {
        "WHITEN_SERVE_SERVICE_HOST": "10.0.0.7",
        "WHITEN_SERVE_SERVICE_PORT": "80",
        "WHITEN_SERVE_SERVICE_PORT_HTTP": "80",
        "WHITEN_SERVE_PORT": "tcp://10.0.0.7:80",
        "WHITEN_SERVE_PORT_80_TCP": "tcp://10.0.0.7:80",
        "WHITEN_SERVE_PORT_80_TCP_ADDR": "10.0.0.7",
    }
    assert from_environment(links).values == {}
    assert from_environment({**links, "WHITEN_SERVE_PORT": "9000"}).values == {"port": "9000"}
    with pytest.raises(UsageError, match="there is no variable WHITEN_SERVE_PORTS"):
        from_environment({"WHITEN_SERVE_PORTS": "9000"})
