"""A notebook that shows everything that has a picture or a table there."""

import pytest

CELLS = (
    """
import warnings
warnings.simplefilter("ignore")
import numpy as np
import minigraph as mg
from minigraph import nn, ops
x = mg.input("x", (4, 8))
net = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
y = net(x)
step = mg.comp_graph("cpu").compile([x], y)
y""",
    "net",
    "step",
    "step.report()",
    'step.report().section("passes")',
    "profile = step.profile(np.ones((4, 8)))\nprofile",
    "x",
    """
import time
from minigraph.platform.messages import status_line
with status_line("compiling: something long"):
    time.sleep(2.5)
""",
)


@pytest.mark.long
def test_a_notebook_shows_pictures_tables_and_progress():
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    notebook = nbformat.v4.new_notebook(cells=list(map(nbformat.v4.new_code_cell, CELLS)))
    nbclient.NotebookClient(notebook, timeout=120).execute()
    *shown, long = [cell.outputs for cell in notebook.cells]
    pages = [outputs[-1]["data"] for outputs in shown]
    html = [page.get("text/html", page["text/plain"]) for page in pages]
    assert html[0].startswith("<pre>") and "relu" in html[0]
    assert "(0): Linear" in html[1]
    for page, word in zip(html[2:6], ("1: level 2", "1: level 2", "fuse", "ms in"), strict=True):
        assert word in page
    assert html[6].startswith("<pre>")
    assert all(len(page["text/plain"]) < 4000 for page in pages)
    assert long
