"""The table of a module that a notebook shows."""

import re

from minigraph import nn
from minigraph.nn import module


def cells(net):
    rows = re.findall(r"<tr>(.*?)</tr>", net._repr_html_())
    return [tuple(re.findall(r"<td>(.*?)</td>", row)) for row in rows[1:]]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU())
        self.head = nn.Linear(4, 2, bias=False)


def test_a_module_shows_its_layers_with_their_parameters():
    found = {row[0]: row[1:] for row in cells(Net())}
    assert list(found) == ["body.0", "body.1", "body.2", "head"]
    assert found["head"] == (
        "Linear",
        "in_features=4, out_features=2, bias=False",
        "weight float32[2,4]",
    )
    assert "running_mean float32[4]" in found["body.1"][2]
    assert found["body.2"][0] == "ReLU" and found["body.2"][2] == ""
    assert f"Net: {4 * 3 * 9 + 4 + 4 + 4 + 8} parameters" in Net()._repr_html_()


def test_a_table_is_bounded(monkeypatch):
    monkeypatch.setattr(module, "ROWS", 2)
    found = cells(nn.Sequential(*(nn.Linear(1, 1) for _ in range(5))))
    assert found[2] == ("3 more",) and len(found) == 3
