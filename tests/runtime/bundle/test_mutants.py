"""Test that no mutant of a bundle raises an untyped error, or gives other vectors and passes verify."""

import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from support.bundles import rewrite_file
from whiten_runtime.bundle.files import own_hash, with_own_hash
from whiten_runtime.bundle.manifest import MANIFEST_FILE, read_manifest
from whiten_runtime.errors import WhitenError
from whiten_runtime.opened.encoder import Encoder

pytestmark = pytest.mark.slow

MUTANTS = 1000
TEXTS = ["a text", "another one, which is longer"]


def mutated(content: bytes, chance: random.Random) -> bytes:
    """Flip, cut or insert some bytes."""
    place = chance.randrange(len(content))
    kind = chance.choice(("flip", "cut", "insert", "number"))
    if kind == "cut":
        return content[:place] + content[place + chance.choice((1, 8, 1000, len(content))) :]
    if kind == "insert":
        return content[:place] + chance.randbytes(chance.choice((1, 8))) + content[place:]
    if kind == "number":
        return content[:place] + content[place:].replace(b"1", b"%d" % chance.choice((0, -1, 7, 2**31, 2**70)), 1)
    return content[:place] + bytes([content[place] ^ (1 << chance.randrange(8))]) + content[place + 1 :]


def test_mutants_are_refused_or_harmless(golden: Path, tmp_path: Path) -> None:
    """Half of them have their hashes computed anew, as by an author, and may give other vectors."""
    base = golden / "bundle-v1"
    with Encoder(base) as encoder:
        want = encoder.encode(TEXTS)
    names, chance = [MANIFEST_FILE, *sorted(read_manifest(base).files)], random.Random(0)
    refused = {True: 0, False: 0}
    for number in range(MUTANTS):
        name, rehashed, copy = chance.choice(names), number % 2 == 0, tmp_path / "copy"
        shutil.copytree(base, copy)
        content = mutated((base / name).read_bytes(), chance)
        if not rehashed:
            (copy / name).write_bytes(content)
        elif name != MANIFEST_FILE:
            rewrite_file(copy, name, content)
        else:
            (copy / name).write_bytes(with_own_hash(content) if own_hash(content) else content)
        try:
            with Encoder(copy) as encoder:
                got, passes = encoder.encode(TEXTS), encoder.verify().min_cosine > 0.999999
        except WhitenError as error:
            assert "\n" not in str(error)
            refused[rehashed] += 1
        else:
            assert rehashed or (passes and np.array_equal(got, want)), (number, name)
        shutil.rmtree(copy)
    assert all(100 < count < MUTANTS / 2 for count in refused.values()), refused
