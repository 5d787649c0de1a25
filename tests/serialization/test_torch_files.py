"""Files of torch.save, read without torch: everything comes back that is data, and nothing runs."""

import argparse
import os
import pickle
import zipfile

import numpy as np
import pytest

import minigraph as mg
from minigraph.serialization import torch_file


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.pt"


class Runs:
    """An object that makes a folder when it is unpickled."""

    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def same(arrays, want, torch):
    if isinstance(want, torch.Tensor):
        if want.dtype == torch.bfloat16:
            arrays, want = arrays.astype("float32"), want.float()
        np.testing.assert_array_equal(arrays, want.detach().resolve_neg().numpy())
        return
    kinds = [each for each in (dict, tuple, list) if isinstance(want, each)]
    assert isinstance(arrays, kinds[0] if kinds else type(want))
    if isinstance(want, dict):
        assert arrays.keys() == want.keys()
    if isinstance(want, dict | list | tuple):
        keys = want if isinstance(want, dict) else range(len(want))
        assert len(arrays) == len(want)
        for key in keys:
            same(arrays[key], want[key], torch)
    else:
        assert arrays == want


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
@pytest.mark.parametrize("mmap", [False, True])
def test_a_checkpoint_comes_back_as_torch_reads_it(path, torch, mmap, protocol):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4))
    adam = torch.optim.Adam(net.parameters())
    net(torch.ones(1, 3, 5, 5)).sum().backward()
    adam.step()
    marked = [torch.ones(2), torch.nn.Parameter(torch.ones(2))]
    for tensor in marked:
        tensor.kind = "no decay"
    dtypes = ("bfloat16", "bool", "float16", "float64", "int8", "int16", "int32", "uint8", "uint16")
    checkpoint = {
        "model": net.state_dict(),
        "optimizer": adam.state_dict(),
        "tensors": {name: torch.ones(3, dtype=getattr(torch, name)) for name in dtypes},
        "views": [
            torch.arange(6.0).reshape(2, 3).T,
            torch.ones(4)[1:],
            torch.zeros(2).expand(3, 2),
        ],
        "odd": (torch.zeros(0, 3), torch.tensor(2.5), torch.nn.Parameter(torch.ones(2))),
        "marked": marked,
        "negative": torch.ones(2)._neg_view(),
        "plain": {"epoch": 3, "large": 2**40, "loss": 0.5, "name": "é", "none": None, "yes": True},
        "size": torch.Size([2, 3]),
    }
    torch.save(checkpoint, path, pickle_protocol=protocol)
    arrays = mg.load(path, mmap=mmap)
    same(arrays, checkpoint, torch)
    assert [view.flags.writeable for view in arrays["views"]] == [True, True, False]
    arrays["model"]["0.weight"][0] = 7
    assert mg.load(path)["model"]["0.weight"][0, 0, 0, 0] != 7


def test_tensors_that_share_memory_share_it_again(path, torch):
    weight = torch.zeros(2, 3)
    torch.save({"a": weight, "b": weight, "row": weight[1]}, path)
    arrays = mg.load(path)
    arrays["a"][1, 2] = 5
    assert arrays["b"][1, 2] == arrays["row"][2] == 5


def test_objects_of_other_classes_are_placeholders_and_named(path, torch, monkeypatch):
    monkeypatch.setattr("minigraph.errors._warned", set())
    folder = path.parent / "made"
    arguments = argparse.Namespace(lr=0.1)
    torch.save(
        {"w": torch.ones(2), "args": arguments, "list": [1, arguments], "x": Runs(folder)}, path
    )
    text = "objects of other classes, which are Unread: argparse.Namespace, posix.mkdir$"
    with pytest.warns(mg.MinigraphWarning, match=text):
        arrays = mg.load(path)
    assert str(arrays["list"]) == "[1, <unread argparse.Namespace>]"
    assert not folder.exists()


def test_a_whole_model_and_what_is_no_dict_are_errors_that_say_what_to_save(path, torch):
    for thing, name in ((torch.nn.Linear(2, 1), "torch.nn.modules.linear.Linear"), ([1], "list")):
        torch.save(thing, path)
        with pytest.raises(mg.GraphError, match=rf"has an object of {name}; .*state_dict\(\)"):
            mg.load(path)


def archive(path, made, **members):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("model/data.pkl", made)
        for name, data in members.items():
            file.writestr(f"model/{name}", data)


BOMB = b"\x80\x02(" + b"".join(b"\x89\x89\x86q%c" % i + b"h%ch%c\x86" % (i, i) for i in range(200))


@pytest.mark.parametrize(
    "members",
    [
        *(b"", b"\x80\x02", b"\x80\x02.", b"\x80\x02u.", b"\x80\x02}(K\x01u."),
        *(b"\x80\x02h\x05.", b"\x80\x02\x85.", b"\x80\x02}\x85R.", b"\x80\x02K\x01Q.", b"(lp0\n."),
        *(b"\x80\x02" + b"]" * 100_000 + b".", b"\x80\x02" + b"(" * 10**5 + b".", BOMB + b"t."),
        b"\x80\x02}" + b"K\x01" + b"\x85" * 10**5 + b"K\x02s.",
        *(pickle.dumps({("a", 1): 2}, 2), b"\x80\x02ctorch\nfloat32\n)b."),
        b"\x80\x02ccollections\nOrderedDict\n]]K\x01aa\x85R.",
        b"\x80\x02}X\x01\x00\x00\x00ac__builtin__\neval\nX\x01\x00\x00\x001\x85o.",
    ],
)
def test_a_pickle_that_torch_does_not_write_is_an_error_of_one_line(path, members):
    archive(path, members)
    with pytest.raises(mg.GraphError, match=r"model\.pt") as caught:
        mg.load(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("offset", "size", "stride"),
    [(-1, (2,), (1,)), (2, (2,), (-1,)), (0, (-2,), (1,)), (3, (2,), (1,)), (0, (2, 2), (3, 1))],
)
def test_a_tensor_that_reaches_beyond_its_storage_is_an_error(offset, size, stride):
    with pytest.raises(ValueError, match=r"beyond its storage|negative sizes"):
        torch_file._tensor(np.zeros(4), offset, size, stride)
