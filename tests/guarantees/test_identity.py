"""I. Identity: one model has one id, another vector has another, and a bundle is known by its bytes."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save

from support.bundles import copy_bundle, rewrite_file
from support.checkpoints import save_adapter, save_checkpoint, write_json
from support.cli import ok, python, refused
from support.corpus import sentences
from support.once import once
from support.vectors import ROUNDING, worst
from whiten import BundleError, Coder, Encoder, IntegrityError

TEXTS = [*sentences(6), "", "one"]

# I1: the same weights, code and tokenizer have one id, whichever version of transformers or peft wrote the folder.

FAMILIES = ("bert", "roberta", "qwen3", "mistral", "modernbert", "t5")

FORMER = {  # settings that versions since have added, or spell in another way
    "bert": ("add_cross_attention", "is_decoder", "tie_word_embeddings", "classifier_dropout"),
    "roberta": ("add_cross_attention", "is_decoder", "tie_word_embeddings", "classifier_dropout"),
    "qwen3": ("layer_types", "rope_parameters", "sliding_window"),
    "mistral": ("rope_parameters", "head_dim"),
    "modernbert": ("tie_word_embeddings", "decoder_bias", "mlp_dropout"),
    "t5": ("dense_act_fn", "is_gated_act", "scale_decoder_outputs", "classifier_dropout"),
}


@pytest.fixture
def network(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that makes the checkpoint of a family, with two blocks, once."""

    def make(family: str) -> Path:
        count = {"num_layers": 2} if family == "t5" else {"num_hidden_layers": 2}
        if family == "modernbert":
            count = {}
        return once(tmp_path_factory, f"identity/{family}", lambda path: save_checkpoint(family, path, **count))

    return make


def config_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "config.json").read_text("utf-8"))
    return content


def as_before(family: str, source: Path, folder: Path) -> Path:
    """Copy a checkpoint, with its config as an older version of transformers wrote it."""
    copy, config = Path(shutil.copytree(source, folder)), config_of(source)
    rotary = config.get("rope_parameters") if "rope_parameters" in FORMER[family] else None
    if rotary:
        config["rope_theta"] = rotary["rope_theta"]
    write_json(copy / "config.json", {name: value for name, value in config.items() if name not in FORMER[family]})
    return copy


def with_a_note(family: str, source: Path, folder: Path) -> Path:
    copy = Path(shutil.copytree(source, folder))
    write_json(copy / "config.json", config_of(source) | {"my_private_note": "trained on Tuesday"})
    return copy


def saved_again(family: str, source: Path, folder: Path) -> Path:
    """Read a checkpoint and save it, the weights too, in files of another kind of tokenizer and another order."""
    import transformers

    copy = Path(shutil.copytree(source, folder))
    transformers.AutoModel.from_pretrained(source).save_pretrained(copy, max_shard_size="20kB")
    transformers.AutoTokenizer.from_pretrained(source).save_pretrained(copy)
    if (copy / "model.safetensors.index.json").exists():
        (copy / "model.safetensors").unlink()
    return copy


def pickled(family: str, source: Path, folder: Path) -> Path:
    """Copy a checkpoint, with its weights as a pickle of torch, and a constant that older versions stored."""
    import torch
    from safetensors.torch import load_file as load_tensors

    copy = Path(shutil.copytree(source, folder))
    weights = load_tensors(copy / "model.safetensors")
    if family == "bert":
        weights["embeddings.position_ids"] = torch.arange(8)[None]
    torch.save(weights, copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    return copy


WRITERS = (as_before, with_a_note, saved_again, pickled)


def exported(source: Path, bundle: Path, *options: object) -> Encoder:
    ok("export", source, "--layers", "1,2", "--whitening", "none", "--out", bundle, *options)
    return Encoder(bundle)


def test_i1_a_folder_that_is_saved_again_keeps_its_id(network: Callable[[str], Path], tmp_path: Path) -> None:
    before = exported(network("bert"), tmp_path / "before")
    after = exported(saved_again("bert", network("bert"), tmp_path / "copy"), tmp_path / "after")
    assert before.space == after.space
    np.testing.assert_array_equal(before.encode(TEXTS), after.encode(TEXTS))


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES)
def test_i1_whoever_writes_a_folder_gives_it_the_same_id(
    network: Callable[[str], Path], family: str, tmp_path: Path
) -> None:
    source = network(family)
    before = exported(source, tmp_path / "before")
    for writer in WRITERS:
        after = exported(writer(family, source, tmp_path / writer.__name__), tmp_path / f"{writer.__name__}-bundle")
        assert after.space == before.space, writer.__name__
        np.testing.assert_array_equal(after.encode(TEXTS), before.encode(TEXTS))


@pytest.mark.slow
def test_i1_an_adapter_that_peft_saves_again_keeps_its_id(network: Callable[[str], Path], tmp_path: Path) -> None:
    base = network("bert")
    first = save_adapter(base, tmp_path / "first", "AutoModel", None)
    again = Path(shutil.copytree(first, tmp_path / "again"))
    path = again / "adapter_config.json"
    config = json.loads(path.read_text("utf-8"))
    usual = [name for name, value in config.items() if value in (None, False, {}) and name != "base_model_name_or_path"]
    assert len(usual) > 10
    write_json(path, {name: value for name, value in config.items() if name not in usual} | {"use_newest": False})
    one, other = exported(first, tmp_path / "one"), exported(again, tmp_path / "other")
    assert one.space == other.space
    np.testing.assert_array_equal(one.encode(TEXTS), other.encode(TEXTS))
    write_json(path, config | {"lora_alpha": 16})
    scaled = exported(again, tmp_path / "scaled")
    write_json(path, config)
    arrays = load_file(again / "adapter_model.safetensors")
    arrays[min(arrays)] = 2 * arrays[min(arrays)]
    (again / "adapter_model.safetensors").write_bytes(save(arrays, {"format": "pt"}))
    retrained = exported(again, tmp_path / "retrained")
    for changed in (scaled, retrained):
        assert changed.space != one.space
        assert worst(changed.encode(TEXTS), one.encode(TEXTS)) > ROUNDING


@pytest.mark.slow
def test_i1_stored_vectors_go_on_with_a_folder_that_was_saved_again(
    network: Callable[[str], Path], corpus_file: Path, tmp_path: Path
) -> None:
    fit = ("--layers", "1,2", "--whitening", "pca", "--corpus", corpus_file)
    ok("export", network("bert"), *fit, "--out", tmp_path / "old")
    for writer in (saved_again, as_before):
        copy = writer("bert", network("bert"), tmp_path / writer.__name__)
        name = f"{writer.__name__}-bundle"
        ok("export", copy, *fit, "--align-to", tmp_path / "old", "--out", tmp_path / name)
        ok("fit", tmp_path / name, "--corpus", corpus_file, "--out", tmp_path / f"{name}.stats")
        refit = ("refit", tmp_path / "old", "--stats", tmp_path / f"{name}.stats", "--whitening", "pca")
        ok(*refit, "--out", tmp_path / f"{name}-refit")


@pytest.mark.slow
def test_i1_other_weights_cannot_be_aligned_to(
    network: Callable[[str], Path], corpus_file: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file as load_tensors
    from safetensors.torch import save_file as save_tensors

    fit = ("--layers", "1,2", "--whitening", "pca", "--corpus", corpus_file)
    ok("export", network("bert"), *fit, "--out", tmp_path / "old")
    other = Path(shutil.copytree(network("bert"), tmp_path / "other"))
    weights = load_tensors(other / "model.safetensors")
    weights["embeddings.word_embeddings.weight"][7, 3] += 1
    save_tensors(weights, other / "model.safetensors", {"format": "pt"})
    error = refused("export", other, *fit, "--align-to", tmp_path / "old", "--out", tmp_path / "new", code=2)
    assert "weights_sha256" in error
    assert not (tmp_path / "new").exists()


def perturbed(bundle: Path, folder: Path) -> Path:
    """Copy a bundle, whose stored moments differ in their last bits, as those of another processor do."""
    copy = copy_bundle(bundle, folder)
    arrays = load_file(copy / "whitening.safetensors")
    covariance = arrays["covariance"] * (1 + 1e-15 * np.random.default_rng(0).normal(size=arrays["covariance"].shape))
    arrays["covariance"] = (covariance + covariance.T) / 2
    assert (arrays["covariance"] != load_file(copy / "whitening.safetensors")["covariance"]).any()
    rewrite_file(copy, "whitening.safetensors", save(arrays))
    return copy


def test_i1_a_coder_reads_the_codes_of_another_machine(tiny_bundle: Path, tiny: Encoder, tmp_path: Path) -> None:
    vectors = tiny.encode(sentences(40))
    here, there = Coder.of(tiny_bundle, 8), Coder.of(perturbed(tiny_bundle, tmp_path), 8)
    assert here.id == there.id
    np.testing.assert_array_equal(here.encode_array(vectors), there.encode_array(vectors))
    assert here.search(vectors[:3], there.encode(vectors), 1).rows.ravel().tolist() == [0, 1, 2]
    fitted = [Coder.fit(np.repeat(vectors, 4, axis=0), 8).id for _ in range(2)]
    assert fitted[0] == fitted[1] != here.id


# I2: another vector for any text has another id.

CHANGES: dict[str, dict[str, Any]] = {
    "bert": {"layer_norm_eps": 1e-3, "hidden_act": "relu"},
    "qwen3": {"is_causal": False, "rms_norm_eps": 1e-3},
    "mistral": {"sliding_window": 3},
}
OPTIONS = (
    ("--layers", "1"),
    ("--pooling", "cls"),
    ("--pooling", "max"),
    ("--normalize",),
    ("--layers", "0,2"),
)


@pytest.mark.slow
@pytest.mark.parametrize("family", CHANGES)
def test_i2_a_setting_that_changes_a_vector_changes_the_id(
    network: Callable[[str], Path], family: str, tmp_path: Path
) -> None:
    source = network(family)
    before = exported(source, tmp_path / "before")
    for name, value in CHANGES[family].items():
        copy = Path(shutil.copytree(source, tmp_path / name))
        write_json(copy / "config.json", config_of(copy) | {name: value})
        after = exported(copy, tmp_path / f"{name}-bundle")
        assert worst(after.encode(TEXTS), before.encode(TEXTS)) > ROUNDING
        assert after.space != before.space, name


@pytest.mark.slow
def test_i2_ids_of_options_weights_and_corpora_differ(
    network: Callable[[str], Path], corpus_file: Path, tmp_path: Path
) -> None:
    from safetensors.torch import load_file as load_tensors
    from safetensors.torch import save_file as save_tensors

    source, other = network("bert"), tmp_path / "other-corpus.txt"
    other.write_text("\n".join(sentences(450)[50:]) + "\n", "utf-8")
    swapped = Path(shutil.copytree(source, tmp_path / "swapped"))
    weights = load_tensors(swapped / "model.safetensors")
    first, second = (f"encoder.layer.{index}.output.dense.weight" for index in (0, 1))
    weights[first], weights[second] = weights[second].clone(), weights[first].clone()
    save_tensors(weights, swapped / "model.safetensors", {"format": "pt"})
    runs: list[tuple[Path, tuple[object, ...]]] = [(source, ()), (swapped, ())]
    runs += [(source, options) for options in OPTIONS]
    for corpus in (corpus_file, other):
        runs += [
            (source, ("--whitening", method, "--corpus", corpus)) for method in ("pca", "zca", "centre", "partial")
        ]
    spaces = set[str]()
    for index, (folder, options) in enumerate(runs):
        spaces.add(exported(folder, tmp_path / str(index), *options).space)
    assert len(spaces) == len(runs)


# I3: a bundle whose bytes are unchanged goes on working; one whose bytes changed never gives a vector.


def chmod(file: Path) -> None:
    file.chmod(file.stat().st_mode ^ 0o040)


def touch(file: Path) -> None:
    os.utime(file, ns=(1, 1))


def link(file: Path) -> None:
    target = file.parents[1] / f"link-of-{file.name}-{len(list(file.parents[1].iterdir()))}"
    os.link(file, target)
    target.unlink()


def write_again(file: Path) -> None:
    file.write_bytes(file.read_bytes())


def replace_by_copy(file: Path) -> None:
    copy = file.with_name(f"{file.name}.new")
    shutil.copyfile(file, copy)
    copy.replace(file)


def replace_by_link(file: Path) -> None:
    place = file.resolve()
    moved = place.with_name(f".{place.name}.{len(list(place.parent.iterdir()))}")
    place.rename(moved)
    place.symlink_to(moved)


HARMLESS = (chmod, touch, link, write_again, replace_by_copy, replace_by_link)
FILES = ("whiten.json", "onnx/model.onnx", "tokenizer.json", "whitening.safetensors", "probes.safetensors")


def in_child(work: Callable[[], object]) -> int:
    """Return how a fork ended that did some work: 0, or 3 with an IntegrityError."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except IntegrityError:
            code = 3
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@settings(max_examples=15)
@given(changes=st.lists(st.tuples(st.sampled_from(HARMLESS), st.sampled_from(FILES)), min_size=1, max_size=6))
def test_i3_an_unchanged_bundle_goes_on_whatever_happens_to_its_files(
    tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[Callable[[Path], None], str]]
) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path_factory.mktemp("bundle"))
    text, span = sentences(1)[0], [(0, 5)]
    with Encoder(bundle) as encoder:
        want = encoder.encode(text)
        for change, name in changes:
            change(bundle / name)
        np.testing.assert_array_equal(encoder.encode(text), want)
        passages = encoder.encode_passages(text, span)
        assert in_child(lambda: np.testing.assert_allclose(encoder.encode(text), want, atol=1e-5)) == 0
        assert encoder.verify().min_cosine > 0.999999
    with Encoder(bundle) as again:
        np.testing.assert_array_equal(again.encode(text), want)
        np.testing.assert_allclose(again.encode_passages(text, span), passages, atol=1e-5)


def test_i3_a_bundle_that_is_moved_and_mounted_again_goes_on(tiny_bundle: Path, tmp_path: Path) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path)
    with Encoder(bundle) as encoder:
        want = encoder.encode("one")
        shutil.copytree(bundle, tmp_path / "elsewhere")  # other inodes, as on another device
        bundle.rename(tmp_path / "moved")
        (tmp_path / "elsewhere").rename(bundle)
        assert in_child(lambda: np.testing.assert_allclose(encoder.encode("one"), want, atol=1e-5)) == 0
        encoder.encode_passages("one", [(0, 3)])


@given(data=st.data())
def test_i3_a_changed_byte_is_never_used(
    tiny_bundle: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    bundle = copy_bundle(tiny_bundle, tmp_path_factory.mktemp("bundle"))
    name = data.draw(st.sampled_from(FILES))
    content = bytearray((bundle / name).read_bytes())
    place = data.draw(st.integers(0, len(content) - 1))
    content[place] ^= data.draw(st.integers(1, 255))
    with Encoder(bundle) as encoder:
        times = (bundle / name).stat()
        (bundle / name).write_bytes(content)
        os.utime(bundle / name, ns=(times.st_atime_ns, times.st_mtime_ns))
        if name == "onnx/model.onnx":
            assert in_child(lambda: encoder.encode("one")) == 3
            with pytest.raises(IntegrityError):
                encoder.encode_passages("one", [(0, 3)])
    with pytest.raises(BundleError):
        Encoder(bundle)


# I4: a bundle of 0.3.0 opens.


@pytest.mark.parametrize("name", ["bundle-v1", "bundle-v1-int8", "bundle-v1-published"])
def test_i4_a_bundle_of_0_3_0_opens_and_gives_its_vectors(golden: Path, name: str) -> None:
    with Encoder(golden / name, verify=True) as encoder:
        assert encoder.encode(TEXTS).shape == (len(TEXTS), encoder.dimension)


OPENED_BEFORE = """
import sys
from whiten import Encoder
print(Encoder(sys.argv[1]).space)
"""


def test_i4_its_id_is_the_one_that_it_was_written_with(golden: Path) -> None:
    for name in ("bundle-v1", "bundle-v1-int8"):
        stored = json.loads((golden / name / "whiten.json").read_text("utf-8")).get("space")
        done = python(OPENED_BEFORE, golden / name)
        assert stored in (None, done.stdout.strip()), done.stderr
