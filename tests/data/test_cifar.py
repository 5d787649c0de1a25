"""CIFAR-10: its files, their records, and what augmentation does to them."""

import numpy as np
import pytest

from minigraph.data import (
    CIFAR10,
    DataLoader,
)
from minigraph.data.cifar import MEAN, RECORD, STD, TEST, TRAIN
from minigraph.errors import GraphError


@pytest.fixture
def cifar(tmp_path):
    rng = np.random.default_rng(0)
    for number, name in enumerate(TRAIN + TEST):
        records = rng.integers(0, 256, (number + 1, RECORD), dtype=np.uint8)
        records[:, 0] = number
        records.tofile(tmp_path / name)
    return tmp_path


def test_cifar_reads_records_in_the_order_of_the_files(cifar):
    train, test = CIFAR10(cifar), CIFAR10(cifar, train=False)
    assert len(train) == 15 and len(test) == 6
    assert train.shape == (3, 32, 32) and train.classes[0] == "airplane"
    assert [label for _, label in train] == [0, 1, 1, 2, 2, 2, 3, 3, 3, 3, 4, 4, 4, 4, 4]
    image, label = test[1]
    planes = np.fromfile(cifar / TEST[0], np.uint8)[RECORD + 1 : 2 * RECORD].reshape(3, 32, 32)
    mean, std = (np.reshape(numbers, (3, 1, 1)) for numbers in (MEAN, STD))
    assert label == 5 and image.dtype == np.float32
    assert np.allclose(image, (planes / 255 - mean) / std, atol=1e-5)


def test_cifar_is_found_in_its_published_subfolder(cifar, tmp_path_factory):
    above = tmp_path_factory.mktemp("above")
    cifar.rename(above / "cifar-10-batches-bin")
    assert len(CIFAR10(above, train=False)) == 6


def test_cifar_augmentation_moves_and_flips_the_very_pixels(cifar):
    plain, augmented = CIFAR10(cifar), CIFAR10(cifar, augment=True)
    black = (-np.array(MEAN) / STD).astype(np.float32)
    seen = set()
    for index in range(15):
        image = plain[index][0]
        assert np.array_equal(augmented[index][0], image)
        found = augmented.example(index, np.random.default_rng(index))[0]
        padded = np.stack(
            [np.pad(p, 4, constant_values=b) for p, b in zip(image, black, strict=True)]
        )
        places = [
            (down, right, flip)
            for down in range(9)
            for right in range(9)
            for flip in (1, -1)
            if np.allclose(
                padded[:, down : down + 32, right : right + 32][..., ::flip], found, atol=1e-5
            )
        ]
        assert len(places) == 1
        seen.update(places)
    assert len(seen) > 10 and {flip for *_, flip in seen} == {1, -1}


def test_cifar_augmentation_is_the_same_in_a_batch_alone_and_in_threads(cifar):
    augmented = CIFAR10(cifar, augment=True)
    loaders = [DataLoader(augmented, n, workers=w, seed=2) for n, w in ((4, 0), (1, 0), (4, 2))]
    images = [np.concatenate([images for images, _ in loader]) for loader in loaders]
    assert np.array_equal(images[0], images[1]) and np.array_equal(images[0], images[2])
    again = np.concatenate([images for images, _ in loaders[0]])
    assert not np.array_equal(again, images[0])


def test_a_missing_cifar_file_is_an_error_that_names_it(cifar):
    (cifar / TRAIN[3]).unlink()
    with pytest.raises(GraphError, match=TRAIN[3]):
        CIFAR10(cifar)
    assert len(CIFAR10(cifar, train=False)) == 6
    with pytest.raises(GraphError, match="nowhere"):
        CIFAR10(cifar / "nowhere")


@pytest.mark.parametrize("length", [0, 1, RECORD - 1, 2 * RECORD + 5])
def test_a_cifar_file_of_a_wrong_length_is_an_error_that_names_it(cifar, length):
    (cifar / TRAIN[1]).write_bytes(bytes(length))
    with pytest.raises(GraphError, match=f"{length} bytes in .*{TRAIN[1]}"):
        CIFAR10(cifar)


def test_a_label_out_of_range_in_cifar_names_file_and_record(cifar):
    records = np.fromfile(cifar / TRAIN[4], np.uint8)
    records[3 * RECORD] = 10
    records.tofile(cifar / TRAIN[4])
    with pytest.raises(GraphError, match=f"label 10 in record 3 of .*{TRAIN[4]}"):
        CIFAR10(cifar)


def test_a_cifar_file_that_is_no_regular_file_is_not_waited_for(cifar, endless, promptly):
    path = cifar / TEST[0]
    path.unlink()
    endless(path)
    with pytest.raises(GraphError, match=f"{TEST[0]} .*no regular file"):
        CIFAR10(cifar, train=False)
