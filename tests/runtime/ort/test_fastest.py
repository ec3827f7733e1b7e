"""Test what is said of processors that this machine need not have."""

import pytest

from support.cli import invoke
from whiten_runtime.commands.main import whiten
from whiten_runtime.ort import doctor
from whiten_runtime.ort.doctor import LONG_TEXTS, SHORT_TEXTS, Advice, fastest


@pytest.mark.parametrize(
    ("features", "precision", "why"),
    [
        (("AVX2", "AVX-512", "VNNI"), "int8", "VNNI multiplies"),
        (("AVX2", "AVX-512", "VNNI", "BF16"), "int8", "VNNI multiplies"),
        (("AVX2",), "int8", "without VNNI"),
        (("NEON", "DOTPROD"), "int8", "DOTPROD"),
        (("NEON",), "fp32", "not measured"),
        ((), "fp32", "not measured"),
    ],
)
def test_one_way_for_all_texts(features: tuple[str, ...], precision: str, why: str) -> None:
    (advice,) = fastest(features)
    assert (advice.precision, advice.device) == (precision, "cpu")
    assert why in advice.why


def test_amx_has_bfloat16_for_long_texts() -> None:
    short, long = fastest(("AVX2", "AVX-512", "VNNI", "BF16", "AMX"))
    assert (short.texts, short.precision, short.device) == (SHORT_TEXTS, "int8", "cpu")
    assert (long.texts, long.precision, long.device) == (LONG_TEXTS, "fp32", "openvino:bf16")


def test_doctor_says_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "fastest", lambda *facts: (Advice("long texts", "fp32", "openvino:bf16", "AMX."),))
    monkeypatch.setattr(doctor, "plugin_version", lambda: None)
    lines = invoke(whiten, "doctor").stdout
    assert "fastest      long texts: --precision fp32, --device openvino:bf16\n             AMX.\n" in lines
    assert "from the clone: python -m pip install -c constraints.txt '.[openvino]'" in lines
    assert '"device": "openvino:bf16"' in invoke(whiten, "doctor", "--json").stdout
