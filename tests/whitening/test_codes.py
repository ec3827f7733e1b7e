"""Test codes of vectors: levels, packing, search, and what is refused."""

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from safetensors.numpy import load_file, save_file
from scipy import integrate, stats

from support.bundles import copy_bundle, edit_manifest
from support.vector_sets import anisotropic
from whiten import BundleError, Coder, Codes, DataError, Encoder, IntegrityError, UsageError
from whiten_whitening.codes import search
from whiten_whitening.codes.levels import Bits, expected_noise, levels, nearest_levels, outside, thresholds
from whiten_whitening.codes.packing import code_bytes, int8_rows, pack, sign_words, unpack

FIXED: tuple[Bits, ...] = (1, 2, 4)
ALL: tuple[Bits, ...] = get_args(Bits)


def sample(n: int = 600, width: int = 24, seed: int = 0) -> np.ndarray:
    return (anisotropic(n, width, seed) + np.random.default_rng(99).normal(size=width)).astype(np.float32)


def cosines_of(queries: np.ndarray, decoded: np.ndarray) -> np.ndarray:
    """Cosines in float64 by a direct computation, [q, n]; 0 for rows of zeros."""
    first, second = (rows.astype(np.float64) for rows in (queries, decoded))
    lengths = np.linalg.norm(first, axis=1)[:, None] * np.linalg.norm(second, axis=1)
    return np.divide(first @ second.T, lengths, out=np.zeros(lengths.shape), where=lengths > 0)


# Levels


@pytest.mark.parametrize("bits", FIXED)
def test_levels_are_means_of_their_cells_and_thresholds_half_way(bits: Bits) -> None:
    bounds = np.concatenate([[-np.inf], thresholds(bits), [np.inf]])
    for level, low, high in zip(levels(bits), bounds[:-1], bounds[1:], strict=True):
        first = integrate.quad(lambda x: x * stats.norm.pdf(x), low, high, epsabs=1e-13)[0]
        share = integrate.quad(stats.norm.pdf, low, high, epsabs=1e-13)[0]
        assert level == pytest.approx(first / share, abs=1e-10)


@pytest.mark.parametrize(("bits", "published"), [(1, 0.3634), (2, 0.1175), (4, 0.009497)])
def test_error_of_the_levels_is_the_published_one(bits: Bits, published: float) -> None:
    found = float(expected_noise(np.zeros(1), np.ones(1), bits)[0])
    assert found == pytest.approx(published, rel=1e-3)
    own = levels(bits)
    assert _error(own) == pytest.approx(found, rel=1e-5)
    for moved in np.vstack([own + 0.02 * np.eye(len(own)), own - 0.02 * np.eye(len(own))]):
        assert _error(moved) > found


def _error(own: np.ndarray) -> float:
    grid = np.linspace(-8, 8, 20001)
    distances = np.min(np.square(grid[:, None] - own), axis=1)
    return float(integrate.trapezoid(distances * stats.norm.pdf(grid), grid))


@pytest.mark.parametrize("bits", FIXED)
@pytest.mark.parametrize(("mean", "variance"), [(0.0, 1.0), (0.7, 0.3), (-1.5, 4.0)])
def test_noise_and_share_outside_of_other_normals(bits: Bits, mean: float, variance: float) -> None:
    normal, own = stats.norm(mean, np.sqrt(variance)), levels(bits)
    grid = np.linspace(mean - 10 * np.sqrt(variance), mean + 10 * np.sqrt(variance), 40001)
    errors = np.square(grid - own[nearest_levels(grid, bits)])
    direct = integrate.trapezoid(errors * normal.pdf(grid), grid)
    assert expected_noise(np.asarray([mean]), np.asarray([variance]), bits)[0] == pytest.approx(direct, rel=1e-4)
    share = normal.sf(own[-1]) + normal.cdf(own[0])
    assert outside(np.asarray([mean]), np.asarray([variance]), bits)[0] == pytest.approx(share, abs=1e-12)


@given(arrays.arrays(np.float64, (3, 7), elements=st.floats(-5, 5)), st.sampled_from(FIXED))
def test_nearest_level_is_the_nearest(coordinates: np.ndarray, bits: Bits) -> None:
    distances = np.abs(coordinates[..., None] - levels(bits))
    chosen = np.take_along_axis(distances, nearest_levels(coordinates, bits)[..., None].astype(int), axis=2)[..., 0]
    np.testing.assert_allclose(chosen, distances.min(axis=2), atol=1e-12)


# Packing


@settings(deadline=None)
@given(st.integers(0, 9), st.integers(1, 40), st.sampled_from(FIXED), st.integers(0, 99))
def test_packed_numbers_come_back(n: int, dims: int, bits: Bits, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 2**bits, (n, dims), dtype=np.uint8)
    packed = pack(numbers, bits)
    assert packed.shape == (n, code_bytes(dims, bits))
    assert packed.dtype == np.uint8
    np.testing.assert_array_equal(unpack(packed, bits, dims), numbers)


@given(st.integers(1, 6), st.integers(1, 150), st.sampled_from(FIXED), st.integers(0, 99))
def test_signs_are_those_of_the_levels(n: int, dims: int, bits: Bits, seed: int) -> None:
    numbers = np.random.default_rng(seed).integers(0, 2**bits, (n, dims), dtype=np.uint8)
    words = sign_words(pack(numbers, bits), bits, dims)
    assert words.shape == (-(-dims // 64), n)
    found = np.unpackbits(np.ascontiguousarray(words.T).view(np.uint8), axis=1)[:, :dims]
    np.testing.assert_array_equal(found, levels(bits)[numbers] > 0)


def test_ones_are_counted_without_numpy_2() -> None:
    words = np.random.default_rng(0).integers(0, 2**64, (3, 50), dtype=np.uint64)
    counted = [[int(word).bit_count() for word in row] for row in words]
    np.testing.assert_array_equal(search._ones_by_table(words), counted)
    np.testing.assert_array_equal(search.ones(words), counted)


@given(arrays.arrays(np.float32, (4, 5), elements=st.floats(-100, 100, width=32)))
def test_int8_rows_are_within_half_a_step(vectors: np.ndarray) -> None:
    numbers, scales = int8_rows(vectors)
    assert numbers.dtype == np.int8
    steps = scales[:, None].astype(np.float64)
    assert (np.abs(numbers * steps - vectors) <= 0.5001 * steps + 1e-37).all()
    assert ((np.abs(numbers.astype(int)).max(axis=1) == 127) | (scales < 1e-37)).all()


# Coding


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(ALL), st.integers(1, 24), st.sampled_from([0.0, 0.5, 1.0]), st.integers(0, 7))
def test_decoded_is_the_nearest_level_of_each_coordinate(bits: Bits, dims: int, beta: float, n: int) -> None:
    vectors = sample()
    coder = Coder.fit(vectors, bits, dims, beta)
    codes = coder.encode_codes(vectors[:n])
    assert codes.shape == (n, coder.bytes)
    decoded, wanted = coder.decode(codes), coder.transform(vectors[:n])
    assert decoded.dtype == np.float32
    assert decoded.shape == (n, dims)
    if bits == 8:
        steps = np.abs(wanted).max(axis=1, initial=0, keepdims=True) / 127
        assert (np.abs(decoded - wanted) <= 0.501 * steps).all()
    else:
        assert coder.axes is not None
        grid = levels(bits)[None, None] * coder.axes.scale[None, :, None]
        nearest = np.abs(wanted[..., None] - grid).min(axis=2)
        np.testing.assert_allclose(np.abs(decoded - wanted), nearest, atol=1e-6)


def test_coordinates_of_a_fit_have_the_variances_that_beta_says() -> None:
    vectors = sample()
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    own = np.linalg.eigvalsh(np.cov(units.T))[::-1][:10]
    for beta in (0.0, 0.5, 1.0):
        covariance = np.cov(Coder.fit(vectors, 4, 10, beta).transform(vectors).T)
        np.testing.assert_allclose(np.diag(covariance), own ** (1 - beta), rtol=1e-3)
        assert np.abs(covariance - np.diag(np.diag(covariance))).max() < 1e-5


def test_rotation_alone_keeps_cosines_of_the_centred_vectors() -> None:
    vectors = sample().astype(np.float64)
    units = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    centred = units - units.mean(axis=0)
    found = Coder.fit(vectors, 4, 24, 0.0).transform(vectors)
    np.testing.assert_allclose(cosines_of(found[:9], found), cosines_of(centred[:9], centred), atol=1e-5)


@pytest.mark.parametrize("bits", ALL)
def test_more_bits_are_nearer_and_the_norm_of_a_vector_does_not_matter(bits: Bits) -> None:
    vectors = sample()
    coder = Coder.fit(vectors, bits, 12)
    np.testing.assert_array_equal(coder.encode_codes(vectors), coder.encode_codes(8 * vectors))
    kept = np.diag(cosines_of(coder.transform(vectors), coder.decode(coder.encode_codes(vectors)))).mean()
    assert kept > {1: 0.75, 2: 0.92, 4: 0.99, 8: 0.9995}[bits]


@pytest.mark.parametrize("bits", ALL)
def test_a_code_does_not_depend_on_its_batch(bits: Bits) -> None:
    vectors = sample(50)
    coder = Coder.fit(sample(), bits, 24)
    whole = coder.encode_codes(vectors)
    np.testing.assert_array_equal(np.vstack([coder.encode_codes(row) for row in vectors]), whole)


def test_zeros_and_huge_numbers_are_coded() -> None:
    vectors = sample().astype(np.float64)
    for bits in ALL:
        coder = Coder.fit(vectors, bits, None)
        assert np.isfinite(coder.decode(coder.encode_codes(np.zeros((1, 24))))).all()
        np.testing.assert_array_equal(coder.encode_codes(1e300 * vectors[:3]), coder.encode_codes(vectors[:3]))


# Search


@settings(deadline=None, max_examples=60)
@given(
    st.sampled_from(ALL),
    st.integers(1, 9),
    st.integers(0, 90),
    st.integers(0, 4),
    st.integers(1, 12),
    st.sampled_from([1, 7, 2048]),
    st.booleans(),
    st.integers(0, 9),
)
def test_search_equals_a_direct_search(
    bits: Bits, dims: int, n: int, asked: int, k: int, block: int, kept: bool, seed: int
) -> None:
    """Few dimensions of few bits give many equal codes, so that the order of ties is tested too."""
    vectors = sample(100 + n, 9, seed)
    coder = Coder.fit(vectors[n:], bits, dims)
    queries, codes = vectors[n : n + asked], coder.encode_codes(vectors[:n])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_ROWS_AT_ONCE", block)
        patch.setattr(search, "_QUERIES_AT_ONCE", 3)
        found = coder.search(queries, coder.codes(codes) if kept else codes, k)
    count = min(k, n)
    assert found.rows.shape == found.cosines.shape == (asked, count)
    direct = cosines_of(coder.transform(queries), coder.decode(codes))
    for rows, cosines, all_cosines in zip(found.rows, found.cosines, direct, strict=True):
        order = np.lexsort((np.arange(n), -np.round(all_cosines, 12)))[:count]
        np.testing.assert_array_equal(rows, order)
        np.testing.assert_allclose(cosines, all_cosines[order], atol=1e-6)


@pytest.mark.parametrize("bits", ALL)
def test_candidates_are_those_with_most_signs_in_common(bits: Bits) -> None:
    vectors = sample(900, 24)
    coder = Coder.fit(vectors, bits, 20)
    codes = coder.encode(vectors)
    queries = vectors[:5] + 0.01
    found = coder.search(queries, codes, 4, candidates=60)
    directions, decoded = coder.transform(queries), coder.decode(codes)
    for rows, query in zip(found.rows, directions, strict=True):
        differences = ((decoded >= 0) != (query >= 0)).sum(axis=1)
        chosen = np.sort(np.argsort(differences, kind="stable")[:60])
        cosines = cosines_of(query[None], decoded[chosen])[0]
        np.testing.assert_array_equal(rows, chosen[np.lexsort((chosen, -cosines))[:4]])
    np.testing.assert_array_equal(coder.search(queries, codes.array, 4, candidates=60).rows, found.rows)
    np.testing.assert_array_equal(
        coder.search(queries, codes, 4, candidates=5000).rows, coder.search(queries, codes, 4).rows
    )


def test_nothing_to_search() -> None:
    coder = Coder.fit(sample(), 4, 8)
    empty = coder.encode_codes(np.empty((0, 24)))
    assert empty.shape == (0, 4)
    assert coder.decode(empty).shape == (0, 8)
    assert coder.search(sample(3), empty, 5).rows.shape == (3, 0)
    assert coder.search(np.empty((0, 24)), coder.encode_codes(sample(3)), 2).rows.shape == (0, 2)
    assert coder.search(sample(3), coder.encode_codes(sample(4)), 50).rows.shape == (3, 4)


# Files and identity


@pytest.mark.parametrize(("bits", "dims"), [(1, 24), (2, 7), (4, 24), (8, 7), (8, None)])
def test_coder_and_codes_come_back_from_files(tmp_path: Path, bits: Bits, dims: int | None) -> None:
    vectors = sample()
    coder = Coder.fit(vectors, bits, dims, 0.5, space="0123456789abcdef")
    codes = coder.encode(vectors)
    for name in ("one", "two"):
        coder.save(tmp_path / f"{name}.coder")
        codes.save(tmp_path / f"{name}.codes")
    again, codes_again = Coder.load(tmp_path / "one.coder"), Codes.load(tmp_path / "one.codes")
    assert (again.id, again.space, again.bits, again.beta, again.dims) == (
        coder.id,
        coder.space,
        bits,
        coder.beta,
        coder.dims,
    )
    np.testing.assert_array_equal(again.encode_codes(vectors), codes.array)
    np.testing.assert_array_equal(again.decode(codes_again), coder.decode(codes))
    for kind in ("coder", "codes"):
        assert (tmp_path / f"one.{kind}").read_bytes() == (tmp_path / f"two.{kind}").read_bytes()
    assert len(list(tmp_path.iterdir())) == 4


def test_codes_of_another_coder_or_space_are_refused() -> None:
    vectors = sample()
    coder = Coder.fit(vectors, 4, 8, space="0" * 16)
    other, elsewhere = Coder.fit(vectors[1:], 4, 8, space="0" * 16), Coder.fit(vectors, 4, 8, space="1" * 16)
    for call in (coder.decode, lambda codes: coder.search(vectors[:1], codes)):
        with pytest.raises(UsageError, match=f"made by coder {other.id}, not by this one, {coder.id}"):
            call(other.encode(vectors))
        with pytest.raises(UsageError, match="in space 1111111111111111, but this coder is of space 0000000000000000"):
            call(elsewhere.encode(vectors))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda c, v: c.encode_codes(v[:, :5]), r"vectors are ndarray of float32 \[600, 5\]; wanted numbers \[n, 24\]"),
        (lambda c, v: c.encode_codes(v * np.where(np.arange(600) == 3, np.nan, 1)[:, None]), r"vectors\[3\] is not"),
        (lambda c, v: c.encode_codes([[1.0], [1.0, 2.0]]), "not rows of one length"),
        (lambda c, v: c.encode_codes(v.astype(str)), "wanted numbers"),
        (
            lambda c, v: c.encode_codes(np.ones((2, 24), np.int8)),
            "vectors: has dtype int8.*; wanted vectors",
        ),
        (lambda c, v: c.search(np.ones((2, 24), np.uint8), c.encode(v)), "vectors: has dtype uint8"),
        (lambda c, v: Coder.fit(np.ones((2, 24), bool)), "vectors: has dtype bool"),
        (
            lambda c, v: c.decode(np.zeros((2, 3), np.uint8)),
            r"codes are ndarray of uint8 \[2, 3\]; wanted",
        ),
        (
            lambda c, v: c.decode(np.zeros((2, 4), np.int8)),
            r"codes are ndarray of int8 \[2, 4\]; wanted",
        ),
        (lambda c, v: c.codes([[1, 2]]), r"codes are list \[\[1, 2\]\]; wanted"),
        (lambda c, v: c.search(v, c.encode(v), 0), "k is 0; wanted a whole number of at least 1"),
        (lambda c, v: c.search(v, c.encode(v), 5, candidates=4), "candidates is 4; wanted .* of at least 5, no less"),
        (lambda c, v: Coder.fit(v, 3), "bits is 3; wanted 1, 2, 4 or 8"),
        (lambda c, v: Coder.fit(v, True), "bits is True"),
        (lambda c, v: Coder.fit(v, 4, 25), "dims is 25; the vectors vary along 24 axes: wanted 1 to 24"),
        (lambda c, v: Coder.fit(v, 4, 0), "dims is 0"),
        (lambda c, v: Coder.fit(v, 4, 8, 1.5), "beta is 1.5; wanted a number from 0"),
        (lambda c, v: Coder.fit(v[:8], 4, 8), "8 vectors do not tell 8 axes"),
        (lambda c, v: Coder.fit(v[:, 0], 4), r"1 vectors do not tell 600 axes|vectors are"),
        (lambda c, v: Coder.fit(np.ones((200, 24)), 4), "all vectors have the same direction"),
    ],
)
def test_refusals(call: object, message: str) -> None:
    vectors = sample()
    with pytest.raises(UsageError, match=message) as caught:
        call(Coder.fit(vectors, 4, 8), vectors)  # type: ignore[operator]
    assert "\n" not in str(caught.value)


def test_few_vectors_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="30 vectors of 24 dimensions give rough axes; give 96"):
        Coder.fit(sample(30), 4, 8)


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    coder, path = Coder.fit(sample(), 4, 8), tmp_path / "x.safetensors"
    for load, kind in ((Coder.load, "coder"), (Codes.load, "codes")):
        with pytest.raises(DataError, match=f"is no file; wanted a saved {kind}"):
            load(path)
    path.write_bytes(b"\x00" * 30)
    with pytest.raises(DataError, match="holds no coder"):
        Coder.load(path)
    coder.encode(sample(3)).save(path)
    with pytest.raises(DataError, match="holds 'codes'; wanted a saved coder"):
        Coder.load(path)
    coder.save(path)
    with pytest.raises(DataError, match="holds 'coder'; wanted a saved codes"):
        Codes.load(path)
    header = '{"kind": "coder", "format": 1, "bits": 4, "beta": 0.0, "width": 24, "space": null, "id": "x"}'
    whole = load_file(path)
    for damage in (
        {"mean": whole["mean"][:5]},
        {"scale": whole["scale"] * np.nan},
        {"weight": whole["weight"].astype(np.float32)},
    ):
        save_file({**whole, **damage}, path, {"whiten": header})
        with pytest.raises(DataError, match="is damaged"):
            Coder.load(path)
    save_file(whole, path, {"whiten": header.replace('"format": 1', '"format": 2')})
    with pytest.raises(DataError, match="format 2 of coder, but this version of whiten reads 1; upgrade whiten"):
        Coder.load(path)
    assert list(tmp_path.iterdir()) == [path]


# Bundles


def test_coder_of_a_bundle(tiny_bundle: Path, tiny: Encoder) -> None:
    texts = [f"a sentence about the number {number}" for number in range(40)]
    vectors = tiny.encode(texts)
    coder = Coder.of(tiny_bundle, 4)
    assert (coder.beta, coder.width, coder.dims, coder.space) == (0.5, 32, 32, tiny.space)
    assert Coder.of(tiny_bundle, 4).id == coder.id
    assert len({Coder.of(tiny_bundle, *given).id for given in ((4,), (2,), (4, 8), (4, 8, 0.0), (8, 8), (8,))}) == 6
    cosines = cosines_of(vectors, coder.decode(coder.encode(vectors)) @ np.linalg.pinv(_turned(coder)))
    assert np.diag(cosines).min() > 0.98


def _turned(coder: Coder) -> np.ndarray:
    assert coder.axes is not None
    return coder.axes.weight * coder.axes.scale


@pytest.mark.parametrize("method", ["pca", "zca", "cholesky", "pca-cor", "zca-cor"])
def test_axes_do_not_depend_on_the_rotation_of_a_full_whitening(tmp_path: Path, method: str) -> None:
    from whiten import VectorRecipe, WhiteningSpec, export_vectors

    vectors = sample(900, 12)
    np.save(tmp_path / "v.npy", vectors)
    spec = WhiteningSpec(method)  # type: ignore[arg-type]
    bundle = export_vectors(VectorRecipe(tmp_path / "v.npy", "x", spec=spec), tmp_path / "b").path
    centred = vectors - vectors.mean(axis=0, dtype=np.float64)
    values, basis = np.linalg.eigh(np.cov(centred.T))
    leading = (centred @ basis[:, ::-1])[:, :5] / np.sqrt(values[::-1][:5])
    from whiten import VectorWhitener

    coder = Coder.of(bundle, 4, 5)
    found = coder.transform(VectorWhitener(bundle).transform(vectors))
    np.testing.assert_allclose(cosines_of(found[:9], found), cosines_of(leading[:9], leading), atol=2e-3)


def test_bundle_without_moments_is_refused_or_coded_in_8_bits(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    edit_manifest(bundle, lambda manifest: manifest.update(whitening=None))
    with pytest.raises(BundleError, match="has no whitening and stores no moments; use Coder.fit"):
        Coder.of(bundle, 4)
    coder = Coder.of(bundle, 8)
    assert (coder.bytes, coder.axes) == (36, None)
    (bundle / "whitening.safetensors").write_bytes(b"")
    with pytest.raises(IntegrityError):
        Coder.of(bundle, 4)
    with pytest.raises(BundleError, match="does not exist"):
        Coder.of(tmp_path / "absent")


def test_models_that_need_norms_are_refused(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    edit_manifest(bundle, lambda manifest: manifest.update(similarity_fn_name="dot"))
    with pytest.raises(UsageError, match="compares by dot, which needs the norms"):
        Coder.of(bundle)
    edit_manifest(bundle, lambda manifest: manifest.update(normalize=True))
    assert Coder.of(bundle).dims == 32


def test_tuned_top_layer_is_rotated_and_others_are_half_whitened(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)

    def change(tuned: bool, layers: list[int], beta: float) -> float:
        def edit(manifest: dict) -> None:  # type: ignore[type-arg]
            manifest["source"]["sentence_similarity"] = tuned
            manifest["layers"] = layers
            manifest["whitening"]["beta"] = beta

        edit_manifest(bundle, edit)
        assert Coder.of(bundle, 1).beta == 0.5
        return Coder.of(bundle).beta

    top = 4
    assert change(False, [1, top], 1.0) == 0.5
    assert change(False, [1, top], 0.0) == 0.5
    assert change(True, [1, top], 0.0) == 0.0
    assert change(True, [1, 2], 0.0) == 0.5
