"""Test evaluations of bundles that are named by a repository of the hub."""

import json
from pathlib import Path

from support.bundles import contents
from support.cli import ok
from support.corpus import sentences
from support.hub import Hub
from whiten_whitening.codes.coder import Coder


def test_bundles_of_the_hub_are_evaluated_under_their_names(hub: Hub, tiny_bundle: Path, tmp_path: Path) -> None:
    hub.repositories["org/tiny"] = contents(tiny_bundle)
    texts = tmp_path / "texts.txt"
    texts.write_text("\n".join(sentences(400)) + "\n")
    result = ok("eval", "isotropy", "hf://org/tiny", tiny_bundle, "--input", texts, "--json")
    drifts = [ok("drift", bundle, "--input", texts, "--json").stdout for bundle in (tiny_bundle, "org/tiny")]
    assert Coder.of("hf://org/tiny").id == Coder.of(tiny_bundle).id
    first, second = json.loads(result.stdout)["bundles"]
    assert (first.pop("bundle"), second.pop("bundle")) == ("hf://org/tiny", str(tiny_bundle))
    assert first == second
    assert drifts[0] == drifts[1]
