"""The table of options, as /info tells it."""

from whiten_serving.settings.table import Settings, options, told


def test_every_option_is_told() -> None:
    assert list(told(Settings())) == [option.key for option in options()]


def test_values_are_told_and_of_files_of_secrets_whether_they_are_there() -> None:
    found = told(Settings(api_key_file="/secret/keys", tls_key="/secret/key", max_texts=7, cors_origin=("*",)))
    assert (found["api-key-file"], found["tls-key"], found["tls-cert"]) == (True, True, False)
    assert (found["max-texts"], found["cors-origin"], found["threads"]) == (7, ("*",), None)
