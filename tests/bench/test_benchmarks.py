"""Every case of benchmarks/compare.py measures something small; cuda_kernels.py beside it, too."""

import re
from pathlib import Path

import compare
import pytest
from comparisons import sweep
from launched import start
from needs import NO_BFLOAT16
from new_process import python, wait

from minigraph import nn, ops

FOLDER = Path(__file__).parents[2] / "benchmarks"
SMALL = "resnet20 --quick --batch-size 2 --turns 1 --budget 0.01"
# What each is asked for, and what it then prints beside other things.
CASES = {
    "bfloat16": (SMALL, "| minigraph, bfloat16 | - |"),
    "growth": ("--nodes 100", "unrolled"),
    "memory-limit": (SMALL, "| 80% |"),
    "scaling": ("mlp --quick --budget 0.01", "2 processes"),
    "sweep": ("--only softmax(x --sizes small --dtypes float32 --turns 1", "6 cells, "),
    "start": ("mlp --quick --steps 2", "| mlp | off | filled |"),
    "trace": ("--list", "compile"),
    "without-onednn": (SMALL, "| own kernels |"),
}
# What no cell calls: layers of the name call it, it makes no array of others, or PyTorch has none.
NO_CELL = """
    adaptive_avg_pool2d adaptive_max_pool2d avg_pool2d batch_norm binary_cross_entropy cross_entropy
    binary_cross_entropy_with_logits conv_transpose2d cumulative_prod cumulative_sum getitem pad
    group_norm huber_loss interpolate kl_div l1_loss layer_norm local_response_norm max_pool2d
    mse_loss nll_loss rms_norm smooth_l1_loss batch_norm_with_statistics take_along_axis
    arange astype expand_dims eye flatten full full_like linspace matrix_transpose ones
    ones_like positive reshape squeeze stop_gradient unstack zeros zeros_like random_normal
    random_uniform
    all_gather all_reduce broadcast check print scan slice
    ELU Flatten GELU Hardsigmoid Hardswish Identity LeakyReLU LogSoftmax Mish Module ModuleDict
    ModuleList ModuleState PReLU ReLU ReLU6 Sequential SiLU Sigmoid Softmax Softplus Tanh
    TransformerEncoder Unflatten init manual_seed Buffer Parameter Dropout Dropout2d
"""
TOGETHER = {"scaling"}  # by a launcher of MPI


def test_the_cases_are_listed_with_a_sentence_each_and_all_are_tested(capsys):
    compare.main(["--list"])
    lines = capsys.readouterr().out.splitlines()
    assert {line.split()[0] for line in lines} == compare.CASES.keys()
    assert compare.CASES.keys() == CASES.keys() | {"nccl", "profile"}
    assert all(line.endswith(".") and len(line.split()) > 5 for line in lines)


def test_a_cell_of_the_sweep_calls_each_function_and_layer():
    called = {name for _, call, _ in sweep.calls() for name in re.findall(r"\w+", call)}
    assert {*ops.__all__, *nn.__all__} - called <= {*NO_CELL.split()}


def test_what_a_case_cannot_do_is_one_line(capsys):
    with pytest.raises(SystemExit, match=r"several processes: mpiexec -n 2 python benchmarks/"):
        compare.main(["scaling", "mlp"])
    with pytest.raises(SystemExit):
        compare.main(["without-onednn", "resnet"])
    assert "error: argument NETWORK: 'resnet' is none of mlp, " in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("name", CASES)
def test_a_case_measures(name, tmp_path):
    if name == "bfloat16" and NO_BFLOAT16:
        pytest.skip("needs AVX512_BF16 or AMX")
    asked, shown = CASES[name]
    arguments = FOLDER / "compare.py", name, *asked.split()
    cache = {"MINIGRAPH_CACHE_DIR": str(tmp_path)}
    printed, _ = (
        wait(start(2, *arguments, **cache)) if name in TOGETHER else python(*arguments, **cache)
    )
    assert shown in printed


def test_the_table_of_cuda_kernels_has_a_row_for_each_text_and_a_sum(capsys, monkeypatch):
    pytest.importorskip("minigraph.devices.cuda.device", exc_type=ImportError)
    import cuda_kernels

    monkeypatch.setattr("sys.argv", ["cuda_kernels.py", "mlp", "--rows", "100"])
    cuda_kernels.main()
    title, _, head, _, *rows, last, _, _ = capsys.readouterr().out.split("\n")
    assert title.startswith("MLP 784-128-10, batch 32, float32, level 3; minigraph")
    assert head == "| kernel | runs | MB | bytes | registers | shared |"
    assert last.startswith(f"| all {len(rows)} texts |")
    assert all(8 <= int(row.split("|")[5].split()[0]) <= 255 for row in rows)
