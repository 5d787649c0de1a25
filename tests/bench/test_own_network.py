"""Networks that users bring to the benchmark, as files.

What a file may lack is in `tests/wrong_calls/benchmark.txt`.
"""

import runpy

import numpy as np
import pytest
from bench_plans import planned, scripted

from minigraph.bench import worker
from minigraph.bench.cases import case
from minigraph.platform.records import decode

NETWORK = """
from width import WIDTH

shape, classes = (3, 8, 8), 5

def network(nn):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

        def forward(self, x):
            return x + self.conv(self.conv(x))

    return nn.Sequential(
        nn.Conv2d(3, WIDTH, 3, padding=1), Twice(), nn.Dropout(), nn.Flatten(),
        nn.Linear(64 * WIDTH, classes),
    )
"""


@pytest.fixture
def file(tmp_path):
    """A file of a network, which imports the module beside it."""
    (tmp_path / "width.py").write_text("WIDTH = 4")
    path = tmp_path / "thin.py"
    path.write_text(NETWORK)
    return path


def test_it_has_the_sizes_of_the_file(file):
    subject = case(str(file), quick=True)
    assert (subject.title, subject.images) == ("thin, batch 32, 8 x 8", 32)
    assert case(str(file), batch_size=7).images == 7


def test_it_is_measured_beside_pytorch_and_not_beside_libraries_with_fewer_layers(file, installed):
    plan = planned("--models", str(file))
    sides = plan.sides(str(file))
    assert plan.missing() == {}
    assert {name.partition(",")[0] for name in sides if not name.startswith("level")} == {
        "torch",
        "torch.compile",
    }


def test_a_run_has_the_name_of_the_file(file, run):
    assert [*run({"level 3": scripted()}, str(file)).cases] == ["thin"]


@pytest.fixture
def losses(torch, monkeypatch):
    """Return a function: the losses of a side, by the command of its worker, in this process."""
    for name in ("set_num_threads", "set_flush_denormal"):
        monkeypatch.setattr(torch, name, lambda value: None)
    cudnn = torch.backends.cudnn
    monkeypatch.setattr(cudnn, "allow_tf32", cudnn.allow_tf32)  # the only default that sides change

    def losses_of(command):
        *_, module, task = command
        sides = []
        monkeypatch.setattr(
            worker, "serve", lambda make: sides.append(make(decode(worker.TASK_DECODER, task)))
        )
        runpy.run_module(module, run_name="__main__")
        return sides[0].outputs()

    return losses_of


@pytest.mark.filterwarnings("ignore:.*found in sys.modules")  # by other tests
def test_every_side_has_the_losses_of_pytorch(file, losses):
    """In one process: starting one for each, which imports PyTorch, takes longer than all else."""
    small = ("--levels", "3", "--batch-size", "2", "--budget", "1", "--threads", "1")
    plan = planned("--models", str(file), *small, "--peers", "torch,minigraph.torch")
    sides = plan.sides(str(file))
    assert [*sides] == ["level 3", "torch", "torch, channels last", "minigraph.torch"]
    ours, *others = map(losses, sides.values())
    for other in others:
        np.testing.assert_allclose(other, ours, rtol=1e-3)


@pytest.mark.parametrize(
    ("models", "words"),
    [("nowhere.py", "'nowhere.py' is not a file"), ("{0},sub/{0}", "2 models are called 'thin'")],
)
def test_files_that_are_missing_or_have_one_name_are_one_line(
    file, monkeypatch, models, words, capsys
):
    monkeypatch.chdir(file.parent)
    (file.parent / "sub").mkdir()
    (file.parent / "sub" / file.name).write_text(NETWORK)
    with pytest.raises(SystemExit):
        planned("--models", models.format(file.name))
    errors = capsys.readouterr().err
    assert words in errors and errors.count("\n") == 1
