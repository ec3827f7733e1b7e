"""Test what `benchmarks.guard` says of ratios; nothing is timed."""

from benchmarks.guard.__main__ import verdicts

THEN = {"fp32": {"short": 2.0, "one": 1.0}}


def test_ratios_that_held_pass() -> None:
    lines, passed = verdicts({"fp32": {"short": 1.9, "one": 1.1}}, THEN, 0.1)
    assert passed
    assert lines == [
        "fp32, short: 1.90 times plain onnxruntime, recorded 2.00 (-5%): ok",
        "fp32, one: 1.10 times plain onnxruntime, recorded 1.00 (+10%): ok",
    ]


def test_a_ratio_that_fell_fails() -> None:
    lines, passed = verdicts({"fp32": {"short": 1.7, "one": 1.0}}, THEN, 0.1)
    assert not passed
    assert lines[0].endswith("(-15%): FELL")
    assert lines[1].endswith("ok")


def test_what_was_never_recorded_fails() -> None:
    lines, passed = verdicts({"int8": {"short": 3.0}}, THEN, 0.1)
    assert not passed
    assert "not recorded; --record writes it" in lines[0]
