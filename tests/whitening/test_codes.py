"""Test codes of vectors: rotation, levels, packing, coders of bundles and samples, search, files, and refusals."""

import hashlib
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file
from scipy import integrate, stats

from support.bundles import copy_bundle, edit_manifest
from support.vectors import anisotropic
from whiten import BundleError, Coder, Codes, DataError, Encoder, IntegrityError, UsageError
from whiten_whitening import codes as coder_module
from whiten_whitening.codes import Bits, levels, nearest_levels, pack, rotation, unpack
from whiten_whitening.maps import Method

BITS: tuple[Bits, ...] = get_args(Bits)
WIDTH = 24
SIZES = {1: 2, 2: 5, 3: 7, 4: 11}
"""Bytes of codes of vectors of 24 dimensions, by the bits of a coordinate."""


def sample(n: int = 600, width: int = WIDTH, seed: int = 0) -> np.ndarray:
    return (anisotropic(n, width, seed) + np.random.default_rng(99).normal(size=width)).astype(np.float32)


def cosines_of(queries: np.ndarray, decoded: np.ndarray) -> np.ndarray:
    """Cosines in float64 by a direct computation, [q, n]; 0 for rows of zeros."""
    first, second = (rows.astype(np.float64) for rows in (queries, decoded))
    lengths = np.linalg.norm(first, axis=1)[:, None] * np.linalg.norm(second, axis=1)
    return np.divide(first @ second.T, lengths, out=np.zeros(lengths.shape), where=lengths > 0)


# Rotation, levels, packing


@settings(deadline=None)
@given(st.integers(1, 300))
def test_rotation_is_orthogonal_and_spreads_every_coordinate(dims: int) -> None:
    found = rotation(dims)
    np.testing.assert_allclose(found @ found.T, np.eye(dims), atol=1e-12)
    np.testing.assert_array_equal(found, rotation(dims))
    if dims >= 64:
        assert np.abs(found).max() < 0.75


@pytest.mark.parametrize(
    ("dims", "digest"),
    [(7, "e4000952c0ab7b2a"), (192, "27a902eb91b9b7ff"), (256, "61524c104bb3c781"), (381, "18957c96814043d0")],
)
def test_rotation_has_the_same_bytes_on_every_machine(dims: int, digest: str) -> None:
    assert hashlib.sha256(rotation(dims).astype("<f8").tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize("bits", BITS)
def test_levels_are_means_of_their_cells(bits: Bits) -> None:
    own = levels(bits)
    bounds = np.concatenate([[-np.inf], (own[:-1] + own[1:]) / 2, [np.inf]])
    for level, low, high in zip(own, bounds[:-1], bounds[1:], strict=True):
        first = integrate.quad(lambda x: x * stats.norm.pdf(x), low, high, epsabs=1e-13)[0]
        share = integrate.quad(stats.norm.pdf, low, high, epsabs=1e-13)[0]
        assert level == pytest.approx(first / share, abs=1e-10)


@pytest.mark.parametrize(("bits", "published"), [(1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497)])
def test_error_of_the_levels_is_the_published_one(bits: Bits, published: float) -> None:
    grid = np.linspace(-8, 8, 200001)
    errors = np.square(grid - levels(bits)[nearest_levels(grid, bits)])
    np.testing.assert_allclose(errors, np.square(grid[:, None] - levels(bits)).min(axis=1), atol=1e-12)
    assert integrate.trapezoid(errors * stats.norm.pdf(grid), grid) == pytest.approx(published, rel=1e-3)


@settings(deadline=None)
@given(st.integers(0, 9), st.integers(1, 40), st.integers(0, 3), st.sampled_from(BITS), st.integers(0, 99))
def test_packed_levels_come_back(n: int, dims: int, spare: int, bits: Bits, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 2**bits, (n, dims), dtype=np.uint8)
    size = -(-dims * bits // 8) + spare
    packed = pack(numbers, bits, size)
    assert (packed.shape, packed.dtype) == ((n, size), np.uint8)
    np.testing.assert_array_equal(unpack(packed, bits, dims), levels(bits).astype(np.float32)[numbers])


# Coding


def test_codes_have_the_same_bytes_on_every_machine() -> None:
    """The coder is made of numbers that need no decomposition; no coordinate is near a threshold."""
    rows = (np.arange(36).reshape(3, 12) * 7919 % 101 - 50).astype(np.float32)
    found = {}
    for bits, size in ((1, 2), (2, 3), (3, 5), (4, 6)):
        coder = Coder(size, bits, 12, None, "x", np.full(12, 0.01), rotation(12))  # type: ignore[arg-type]
        found[bits] = coder.encode_array(rows).tobytes().hex()
    assert found == {
        1: "7ef0b9408400",
        2: "7ee8abda9670816450",
        3: "7b5d219260cec8d45c108435116c90",
        4: "6dcac992998dc7a886594d22941659536634",
    }


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(0, 7), st.floats(1e-3, 1e3))
def test_shapes_and_round_trips(size: int, n: int, factor: float) -> None:
    vectors = sample()
    coder = Coder.fit(vectors, size)
    codes = coder.encode_array(vectors[:n])
    assert (codes.shape, codes.dtype) == ((n, size), np.uint8)
    assert coder.dims == min(8 * size // coder.bits, WIDTH)
    decoded = coder.decode(codes)
    assert (decoded.shape, decoded.dtype) == ((n, coder.dims), np.float32)
    exact = coder.transform(vectors[:n]).astype(np.float64)
    exact *= np.sqrt(coder.dims) / np.linalg.norm(exact, axis=1, keepdims=True)
    nearest = np.abs(exact[..., None] - levels(coder.bits)).min(axis=2)
    np.testing.assert_allclose(np.abs(decoded - exact), nearest, atol=1e-5)
    again = pack(nearest_levels(decoded.astype(np.float64), coder.bits), coder.bits, size)
    np.testing.assert_array_equal(again, codes)
    np.testing.assert_array_equal(coder.encode_array(np.float32(factor) * vectors[:n]), codes)


def test_coordinates_keep_cosines_of_the_centred_vectors_and_have_equal_variances() -> None:
    vectors = sample(4000, 96).astype(np.float64)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    coder = Coder.fit(vectors, 48)
    found = coder.transform(vectors)
    assert (coder.bits, coder.dims) == (4, 96)
    centred = units - units.mean(axis=0)
    np.testing.assert_allclose(cosines_of(found[:9], found), cosines_of(centred[:9], centred), atol=1e-5)
    own, turned = np.linalg.eigvalsh(np.cov(units.T)), found.var(axis=0)
    assert own[-1] / own.mean() > 5
    assert turned.max() / turned.mean() < 2.5


def test_bits_follow_from_the_bytes() -> None:
    vectors = sample(2000, 384)
    chosen = {size: Coder.fit(vectors, size) for size in (16, 47, 48, 64, 95, 96, 127, 128, 192)}
    assert {size: (coder.bits, coder.dims) for size, coder in chosen.items()} == {
        **{16: (1, 128), 47: (1, 376), 48: (2, 192), 64: (2, 256), 95: (2, 380)},
        **{96: (3, 256), 127: (3, 338), 128: (4, 256), 192: (4, 384)},
    }
    assert Coder.fit(vectors).bytes == 128


def test_more_bytes_are_nearer() -> None:
    vectors = sample(3000, 96)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    wanted = cosines_of(units - units.mean(axis=0), units - units.mean(axis=0))
    errors = []
    for size in (4, 8, 12, 16, 24, 32, 48):
        decoded = Coder.fit(vectors, size).encode(vectors)
        errors.append(np.abs(cosines_of(*2 * (Coder.fit(vectors, size).decode(decoded),)) - wanted).mean())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.02


@pytest.mark.parametrize("bits", BITS)
def test_a_code_does_not_depend_on_its_batch(bits: Bits) -> None:
    vectors = sample(50)
    coder = Coder.fit(sample(), SIZES[bits])
    assert coder.bits == bits
    whole = coder.encode_array(vectors)
    np.testing.assert_array_equal(np.vstack([coder.encode_array(row) for row in vectors]), whole)


@pytest.mark.parametrize("size", [*SIZES.values(), 1, 12])
def test_zeros_have_the_cosine_0_with_all(size: int) -> None:
    vectors = sample()
    vectors[[5, 77]] = 0
    coder = Coder.fit(vectors, size)
    codes, zero = coder.encode(vectors), np.zeros((2, WIDTH), np.float16)
    found = coder.search([*zero, vectors[1]], codes, len(vectors))
    assert not found.cosines[:2].any()
    assert found.rows[:2].tolist() == 2 * [list(range(len(vectors)))]
    assert not found.cosines[2][np.isin(found.rows[2], (5, 77))].any()
    decoded = coder.decode(codes)
    assert np.flatnonzero(~decoded.any(axis=1)).tolist() == [5, 77]
    np.testing.assert_array_equal(coder.encode_array(-zero), codes.array[[5, 77]])


@pytest.mark.parametrize("bits", BITS)
@pytest.mark.parametrize("dims", [1, 2, 8])
def test_no_other_vector_has_the_code_of_zeros(bits: Bits, dims: int) -> None:
    coder = Coder(4, bits, dims, None, "id", np.zeros(dims), np.eye(dims))
    vectors = np.array([np.ones(dims), np.arange(1, dims + 1), np.arange(dims + 1, 1, -1), np.eye(dims)[0]])
    decoded = coder.decode(coder.encode(vectors))
    assert decoded.any(axis=1).all()
    if bits > 1:
        assert (cosines_of(vectors, decoded).diagonal() > 0.75).all()
    else:  # the sign of the least coordinate is given up
        assert (decoded < 0).argmax(axis=1).tolist() == [0, 0, dims - 1, min(dims - 1, 1)]
        assert (decoded < 0).sum(axis=1).tolist() == [1] * 4


def test_zeros_and_huge_numbers_are_coded() -> None:
    vectors = sample().astype(np.float64)
    for size in SIZES.values():
        coder = Coder.fit(vectors, size)
        assert np.isfinite(coder.decode(coder.encode_array(np.zeros((1, WIDTH))))).all()
        np.testing.assert_array_equal(coder.encode_array(1e300 * vectors[:3]), coder.encode_array(vectors[:3]))


# Search


@settings(deadline=None, max_examples=40)
@given(st.integers(1, 12), st.integers(0, 90), st.integers(1, 4), st.integers(1, 12), st.sampled_from([1, 7, 4096]))
def test_search_equals_a_direct_search(size: int, n: int, asked: int, k: int, block: int) -> None:
    vectors = sample(100 + n)
    coder = Coder.fit(vectors[n:], size)
    queries, codes = vectors[n : n + asked], coder.encode(vectors[:n])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coder_module, "_ROWS_PER_BLOCK", block)
        found = coder.search(queries, codes, k)
    count = min(k, n)
    assert found.rows.shape == found.cosines.shape == (asked, count)
    direct = cosines_of(coder.transform(queries), coder.decode(codes))
    np.testing.assert_allclose(found.cosines, -np.sort(-direct, axis=1)[:, :count], atol=1e-6)
    np.testing.assert_allclose(np.take_along_axis(direct, found.rows, axis=1), found.cosines, atol=1e-6)
    assert all(len(set(rows)) == count for rows in found.rows.tolist())


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 3), max_size=40), st.integers(1, 45), st.integers(1, 41))
def test_search_breaks_ties_of_sign_codes_by_the_row(choices: list[int], k: int, block: int) -> None:
    coder = Coder(2, 1, 16, None, "id", np.zeros(16), np.eye(16))  # 16 signs: their cosines are exact
    signs = np.where(np.tri(4, 16, dtype=bool), 1, -1)
    codes = coder.encode(signs[choices])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(coder_module, "_ROWS_PER_BLOCK", block)
        found = coder.search(signs, codes, k)
    direct = signs @ signs[choices].T / np.float32(16)
    order = np.argsort(-direct, axis=1, kind="stable")[:, :k]
    np.testing.assert_array_equal(found.rows, order)
    np.testing.assert_array_equal(found.cosines, np.take_along_axis(direct, order, axis=1))


# Files and identity


@pytest.mark.parametrize("size", SIZES.values())
def test_coder_and_codes_come_back_from_files(tmp_path: Path, size: int) -> None:
    vectors = sample()
    coder = Coder.fit(vectors, size, space="0123456789abcdef")
    codes = coder.encode(vectors)
    for name in ("one", "two"):
        coder.save(tmp_path / f"{name}.coder")
        codes.save(tmp_path / f"{name}.codes")
    again, codes_again = Coder.load(tmp_path / "one.coder"), Codes.load(tmp_path / "one.codes")
    for name in ("id", "space", "bytes", "bits", "width", "dims"):
        assert getattr(again, name) == getattr(coder, name)
    np.testing.assert_array_equal(again.encode_array(vectors), codes.array)
    np.testing.assert_array_equal(again.decode(codes_again), coder.decode(codes))
    for kind in ("coder", "codes"):
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()
    assert len(list(tmp_path.iterdir())) == 4


def test_codes_of_another_coder_or_space_are_refused() -> None:
    vectors = sample()
    coder = Coder.fit(vectors, 8, space="0" * 16)
    other, elsewhere = Coder.fit(vectors[1:], 8, space="0" * 16), Coder.fit(vectors, 8, space="1" * 16)
    for call in (coder.decode, lambda codes: coder.search(vectors[:1], codes)):
        with pytest.raises(UsageError, match=f"made by coder {other.id}, not by this one, {coder.id}"):
            call(other.encode(vectors))
        with pytest.raises(UsageError, match="in space 1111111111111111, but this coder is of space 0000000000000000"):
            call(elsewhere.encode(vectors))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, v: c.encode_array(v[:, :5]), r"vectors are ndarray of float32 \[600, 5\]; wanted numbers \[n, 24\]"),
        (lambda c, v: c.encode_array(v * np.where(np.arange(600) == 3, np.nan, 1)[:, None]), r"vectors\[3\] is not"),
        (lambda c, v: c.encode_array([[1.0], [1.0, 2.0]]), "not rows of one length"),
        (lambda c, v: c.encode_array(v.astype(str)), "wanted numbers"),
        (lambda c, v: c.encode_array(np.ones((2, 24), np.int8)), "vectors: has dtype int8.*; wanted vectors"),
        (lambda c, v: c.search(np.ones((2, 24), np.uint8), c.encode(v)), "vectors: has dtype uint8"),
        (lambda c, v: c.decode(np.zeros((2, 3), np.uint8)), r"codes are ndarray of uint8 \[2, 3\]; wanted"),
        (lambda c, v: c.decode(np.zeros((2, 4), np.int8)), r"codes are ndarray of int8 \[2, 4\]; wanted"),
        (lambda c, v: c.codes([[1, 2]]), r"codes are list \[\[1, 2\]\]; wanted"),
        (lambda c, v: c.search(v, c.encode(v), 0), "k is 0; wanted a whole number of at least 1"),
        (lambda c, v: Coder.fit(v, True), "bytes is True; wanted a whole number from 1 to 12"),
        (lambda c, v: Coder.fit(v, 13), "bytes is 13; wanted a whole number from 1 to 12: 4 bits for each of the 24"),
        (lambda c, v: Coder.fit(v, 0), "bytes is 0"),
        (lambda c, v: Coder.fit(np.ones((200, 24)), 4), "all vectors have the same direction"),
    ],
)
def test_refusals(call: object, message: str) -> None:
    vectors = sample()
    with pytest.raises(UsageError, match=message) as caught:
        call(Coder.fit(vectors, 4), vectors)  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_few_vectors_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="30 vectors of 24 dimensions give rough axes; give 96"):
        Coder.fit(sample(30), 4)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    coder, path = Coder.fit(sample(), 4), tmp_path / "x.safetensors"
    for load, kind in ((Coder.load, "coder"), (Codes.load, "codes")):
        with pytest.raises(DataError, match=f"; wanted a saved {kind}"):
            load(path)
    path.write_bytes(b"\x00" * 30)
    with pytest.raises(DataError, match="holds no coder"):
        Coder.load(path)
    save_file({}, path, {"whiten": "[" * 100_000})
    with pytest.raises(DataError, match="holds no coder"):
        Coder.load(path)
    coder.encode(sample(3)).save(path)
    with pytest.raises(DataError, match="holds 'codes'; wanted a saved coder"):
        Coder.load(path)
    coder.save(path)
    with pytest.raises(DataError, match="holds 'coder'; wanted a saved codes"):
        Codes.load(path)
    header = '{"kind": "coder", "format": 1, "bytes": 4, "bits": 2, "space": null, "id": "x"}'
    whole = load_file(path)
    for damage in (
        {"mean": whole["mean"][:5]},
        {"mean": whole["mean"] * np.nan},
        {"weight": np.hstack([whole["weight"]] * 2)},
        {"weight": whole["weight"].astype(np.float32)},
    ):
        save_file({**whole, **damage}, path, {"whiten": header})
        with pytest.raises(DataError, match="is damaged"):
            Coder.load(path)
    for wrong in (header.replace('"bytes": 4', '"bytes": "4"'), header.replace('"bits": 2, ', "")):
        save_file(whole, path, {"whiten": wrong})
        with pytest.raises(DataError, match="is damaged"):
            Coder.load(path)
    save_file(whole, path, {"whiten": header.replace('"format": 1', '"format": 2')})
    with pytest.raises(DataError, match="format 2 of coder, but this version of whiten reads 1; upgrade whiten"):
        Coder.load(path)
    assert list(tmp_path.iterdir()) == [path]


# Bundles


def test_coder_of_a_bundle(tiny_bundle: Path, tiny: Encoder) -> None:
    vectors = tiny.encode([f"a sentence about the number {number}" for number in range(40)])
    coder = Coder.of(tiny_bundle)
    assert (coder.bytes, coder.bits, coder.width, coder.dims, coder.space) == (10, 3, 32, 26, tiny.space)
    assert Coder.of(tiny_bundle).id == Coder.of(tiny_bundle, 10).id == coder.id
    assert len({Coder.of(tiny_bundle, size).id for size in range(1, 17)}) == 16
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    exact = cosines_of(units - coder.mean, units - coder.mean)
    whole = Coder.of(tiny_bundle, 16)
    decoded = whole.decode(whole.encode(vectors))
    assert np.abs(cosines_of(decoded, decoded) - exact).max() < 0.08


@pytest.mark.parametrize("method", get_args(Method))
def test_axes_do_not_depend_on_the_rotation_of_a_full_whitening(tmp_path: Path, method: str) -> None:
    from whiten import VectorWhitener, WhiteningSpec, export_vectors

    vectors = sample(900, 12)
    np.save(tmp_path / "v.npy", vectors)
    spec = WhiteningSpec(method)  # type: ignore[arg-type]
    bundle = export_vectors(tmp_path / "v.npy", tmp_path / "b", name="x", spec=spec).path
    centred = vectors - vectors.mean(axis=0, dtype=np.float64)
    values, basis = np.linalg.eigh(np.cov(centred.T))
    coder = Coder.of(bundle, 4)
    leading = ((centred @ basis[:, ::-1]) / np.sqrt(values[::-1]))[:, : coder.dims]
    found = coder.transform(VectorWhitener(bundle).transform(vectors) * np.sqrt(12))
    assert coder.dims == 8
    np.testing.assert_allclose(cosines_of(found[:9], found), cosines_of(leading[:9], leading), atol=2e-3)


def test_bundle_without_moments_is_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    edit_manifest(bundle, lambda manifest: manifest.update(whitening=None))
    with pytest.raises(BundleError, match="has no whitening and stores no moments; use Coder.fit"):
        Coder.of(bundle)
    (bundle / "whitening.safetensors").write_bytes(b"")
    with pytest.raises(IntegrityError):
        Coder.of(bundle)
    with pytest.raises(BundleError, match="does not exist"):
        Coder.of(tmp_path / "absent")


def test_models_that_need_norms_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    edit_manifest(bundle, lambda manifest: manifest.update(similarity_fn_name="dot"))
    with pytest.raises(UsageError, match="compares by dot, which needs the norms"):
        Coder.of(bundle)
    edit_manifest(bundle, lambda manifest: manifest.update(normalize=True))
    assert Coder.of(bundle).dims == 26


@pytest.mark.parametrize("rank", [1, 3, 40, 200])
def test_codes_have_no_bytes_that_no_direction_needs(rank: int) -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(1600, rank)) @ generator.normal(size=(rank, 384))
    coder = Coder.fit(vectors)
    assert coder.bytes == min(384 // 3, -(-4 * rank // 8))
    hits = coder.search(vectors[:5], coder.encode(vectors), 1)
    assert hits.rows.ravel().tolist() == list(range(5)) or rank == 1
    assert (np.abs(hits.cosines) <= 1).all()
