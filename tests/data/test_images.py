"""Prepared sites of images."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from monai_fedskew.data.image_sites import write_image_site
from monai_fedskew.data.images import ImageDataset
from monai_fedskew.data.manifest import read_manifest, write_manifest
from monai_fedskew.data.synthetic_images import write_synthetic_images
from monai_fedskew.errors import ConfigError, DataError

NAMES = ("empty", "square")


def _pixels(shape: tuple[int, ...]) -> "np.ndarray[tuple[int, ...], np.dtype[np.float32]]":
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("shape", [(10, 1, 3, 2), (10, 2, 3, 2, 4)])
def test_images_come_back_in_their_shape(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Pixel for pixel, in any order asked for, in two and three dimensions."""
    images = _pixels(shape)
    folder = write_image_site(tmp_path / "A", images, np.arange(10) % 2, label_names=NAMES)
    data = ImageDataset(folder, "all")
    batch = data.__getitems__([7, 2])
    assert torch.equal(batch["image"], torch.from_numpy(images[[7, 2]]))
    assert batch["label"].tolist() == [1, 0]
    assert data.shape == shape[1:]
    assert read_manifest(folder).shape == shape[1:]


def test_images_of_one_channel_are_repeated_on_request(tmp_path: Path) -> None:
    """A network of three channels takes grey images; two channels are not three."""
    grey = write_image_site(tmp_path / "A", _pixels((4, 1, 2, 2)), [0, 1, 0, 1], label_names=NAMES)
    image = ImageDataset(grey, "all", channels=3)[1]["image"]
    assert image.shape == (3, 2, 2)
    assert all(channel.tolist() == [[4.0, 5.0], [6.0, 7.0]] for channel in image)
    two = write_image_site(tmp_path / "B", _pixels((4, 2, 2, 2)), [0, 1, 0, 1], label_names=NAMES)
    with pytest.raises(ConfigError, match=r"site B: .* has images of 2 channels, the network takes 3"):
        ImageDataset(two, "all", channels=3)


@pytest.fixture(scope="module")
def hundred(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site of 100 images of one pixel, 60 of class 0 and 40 of class 1."""
    folder = tmp_path_factory.mktemp("hundred") / "A"
    return write_image_site(folder, _pixels((100, 1, 1, 1)), np.repeat([0, 1], [60, 40]), label_names=NAMES)


def _limited(folder: Path, limit: int | None, **more: Any) -> ImageDataset:
    return ImageDataset(folder, "train", validation_fraction=0, limit=limit, **more)


def test_a_limit_keeps_the_shares_of_the_classes_and_a_smaller_one_is_part_of_a_larger(hundred: Path) -> None:
    """By hand: 80 images to train on, 48 and 32; 40 of them are 24 and 16, 10 are 6 and 4, 5 are 3 and 2."""
    sizes = (5, 10, 40, 80)
    drawn = [_limited(hundred, limit) for limit in sizes]
    assert [np.bincount(data.labels).tolist() for data in drawn] == [[3, 2], [6, 4], [24, 16], [48, 32]]
    held = [set(data.rows.tolist()) for data in drawn]
    assert [len(rows) for rows in held] == list(sizes)
    assert held[0] < held[1] < held[2] < held[3] == set(_limited(hundred, None).rows.tolist())
    some = drawn[1]
    assert some.__getitems__(range(10))["image"].flatten().tolist() == some.rows.tolist() == sorted(some.rows.tolist())
    assert some.__getitems__(range(10))["label"].tolist() == (some.rows >= 60).tolist()
    assert some.subject_ids.tolist() == [f"{row:06d}" for row in some.rows]
    assert some.groups.tolist() == some.rows.tolist()


def test_a_limit_is_drawn_by_the_seed_of_the_splits(hundred: Path) -> None:
    """The same images for one seed, others for another, of which none is of the test split."""
    rows = [set(_limited(hundred, 20, split_seed=seed).rows.tolist()) for seed in (0, 0, 1)]
    assert rows[0] == rows[1] != rows[2]
    assert not rows[0] & set(ImageDataset(hundred, "test", validation_fraction=0).rows.tolist())


@pytest.mark.parametrize(
    ("limit", "match"),
    [
        (81, "site A: limit=81, but its training split has 80 samples; give at most 80"),
        (0, "site A: limit=0 must be a whole number, 1 or more"),
        (0.5, "site A: limit=0.5 must be a whole number"),
        (True, "site A: limit=True must be a whole number"),
    ],
)
def test_a_limit_that_cannot_be_is_refused(limit: int, match: str, hundred: Path) -> None:
    """More than there are would quietly be all of them."""
    with pytest.raises(ConfigError, match=match):
        _limited(hundred, limit)


def test_only_the_training_split_has_a_limit(hundred: Path) -> None:
    """Scores on fewer images would be another measure."""
    with pytest.raises(ConfigError, match="site A: limit=5 is for the split train, not for test"):
        ImageDataset(hundred, "test", limit=5)


@pytest.mark.parametrize("channels", [0, -1])
def test_channels_that_are_none_are_refused(channels: int, tmp_path: Path) -> None:
    """What is stored is asked for by None, not by 0."""
    grey = write_image_site(tmp_path / "A", _pixels((4, 1, 2, 2)), [0, 1, 0, 1], label_names=NAMES)
    with pytest.raises(ConfigError, match=f"site A: channels={channels} must be a whole number, 1 or more"):
        ImageDataset(grey, "all", channels=channels)


def test_vectors_are_not_taken_for_images(study: Path) -> None:
    """A site of connectomes has no shape."""
    with pytest.raises(DataError, match="holds vectors, not images"):
        ImageDataset(study / "A", "all")


@pytest.mark.parametrize(
    ("images", "labels", "match"),
    [
        (np.zeros((2, 4), np.float32), [0, 1], r"site A: images of shape \(2, 4\)"),
        (np.zeros((2, 1, 2, 2), np.float32), [0], "1 labels"),
        (np.full((2, 1, 2, 2), np.nan, np.float32), [0, 1], "8 pixels are not finite"),
        (np.full((2, 1, 2, 2), 1e300), [0, 1], "8 pixels are not finite in float32"),
        (np.zeros((2, 1, 2, 2), np.complex64), [0, 1], "images are complex64"),
        (np.zeros((2, 1, 2, 2), np.float32), [0, 2], "labels are int64 0 to 2; .* in 0 to 1"),
        (np.zeros((2, 1, 2, 2), np.float32), [0, -1], "labels are int64 -1 to 0"),
        (np.zeros((2, 1, 2, 2), np.float32), [0.0, 0.7], "labels are float64"),
        (np.zeros((2, 1, 0, 2), np.float32), [0, 1], r"images of shape \(2, 1, 0, 2\)"),
    ],
)
def test_what_is_no_site_of_images_is_refused(images: object, labels: list[int], match: str, tmp_path: Path) -> None:
    """The error names the site and what was seen."""
    with pytest.raises(DataError, match=match):
        write_image_site(tmp_path / "A", images, labels, label_names=NAMES)  # type: ignore[arg-type]  # on purpose
    assert not (tmp_path / "A").exists()


@pytest.mark.parametrize("ids", [["a", "a"], ["a", ""], [1, 2]])
def test_ids_are_texts_and_each_another_one(ids: list[str], tmp_path: Path) -> None:
    """What could be written but not be read again is refused."""
    with pytest.raises(DataError, match="ids, label names and notes must be texts, and each id another one"):
        write_image_site(tmp_path / "A", _pixels((2, 1, 2, 2)), [0, 1], label_names=NAMES, ids=ids)


def test_a_folder_is_not_written_over(tmp_path: Path) -> None:
    """What was prepared stays."""
    write_image_site(tmp_path / "A", _pixels((2, 1, 2, 2)), [0, 1], label_names=NAMES)
    with pytest.raises(DataError, match="exists; give a new folder"):
        write_image_site(tmp_path / "A", _pixels((2, 1, 2, 2)), [0, 1], label_names=NAMES)


def test_sites_prepared_before_images_came_are_still_read(study: Path, tmp_path: Path) -> None:
    """A manifest without the key `shape` is one of vectors; its checksum is over what it holds."""
    from monai_fedskew.data import manifest as module

    old = tmp_path / "A"
    old.mkdir()
    (old / "vectors.npy").write_bytes((study / "A" / "vectors.npy").read_bytes())
    write_manifest(old, read_manifest(study / "A"))
    content = json.loads((old / "manifest.json").read_text())
    del content["shape"]
    content["manifest_sha256"] = module._checksum(content)
    (old / "manifest.json").write_text(json.dumps(content))
    assert read_manifest(old) == read_manifest(study / "A")


def test_synthetic_images_are_skewed_and_reproducible(tmp_path: Path) -> None:
    """Each site has its own mean, every image but noise a class, and a seed gives the same pixels again."""
    for name in ("one", "two"):
        write_synthetic_images(tmp_path / name, sites=("A", "B"), dimensions=3)
    first, again = (ImageDataset(tmp_path / name / "B", "all") for name in ("one", "two"))
    assert torch.equal(first.__getitems__(range(40))["image"], again.__getitems__(range(40))["image"])
    assert first.shape == (1, 8, 8, 8)
    means = [read_manifest(tmp_path / "one" / site).summary["mean"] for site in "AB"]
    assert abs(means[0] - means[1]) > 0.1
    with pytest.raises(ConfigError, match="size=3"):
        write_synthetic_images(tmp_path / "three", size=3)
