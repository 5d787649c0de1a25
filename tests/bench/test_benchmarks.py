"""Every program of benchmarks/ starts, measures something small and ends."""

import os
from pathlib import Path

import pytest
from launched import start
from needs import NO_BFLOAT16
from new_process import python, wait

FOLDER = Path(__file__).parents[2] / "benchmarks"
IMPORTED = {"kernel_runs", "sass", "slow_link", "turns"}  # by the programs
GPU = {"nccl_bucket"}
# What each is asked for, and what it then prints beside other things.
ASKED = {
    "busy_tuning": ("resnet18 --quick --problems 2 --busy 1", "| 1 | computed, least |"),
    "cuda_kernels": ("mlp --rows 2", "texts | "),
    "convolutions": ("--images 1 --layers 512/2 --turns 1", "weights: "),
    "few_rows": ("--rows 4 --layers 4096x4096 --turns 1", "of the bound"),
    "first_contact": ("--device cpu", "column reduction"),
    "first_step": ("mlp --processes 2", "| mlp | filled |"),
    "growth": ("--nodes 100", "unrolled"),
    "hundred_steps": ("mlp --quick --side off --steps 2", "| mlp | off | empty |"),
    "mask_memory": ("resnet20", "| ResNet-20"),
    "memory_limit": ("resnet20 --batch 1 --size 32 --turns 1", "| 100% |"),
    "mixed_precision": ("mlp --quick --turns 1", "| MLP"),
    "other_sizes": ("", "| chosen by |"),
    "overlap": ("mlp --quick --turns 1 --budget 0.01", "4 MiB"),
    "peak_memory": ("mlp", "| MLP"),
    "profile_prediction": ("resnet18-1 --quick --threads 1 --budget 0", "conv2d by"),
    "profile_training": ("mlp --device cpu --quick --budget 0 --out {folder}", ""),
    "saved_activations": ("resnet18 --quick --turns 1", "| ResNet-18"),
    "scaling": ("mlp --quick --budget 0.01", "2 processes"),
    "trace_compile": ("--top 3", "compile"),
    "update_products": ("--turns 1", "| 4096 x 4096 | 64 | 64 |"),
    "without_onednn": ("mlp --quick --turns 1 --budget 0.01", "| MLP"),
}
TOGETHER = {"overlap", "scaling"}  # by a launcher of MPI


def test_every_program_is_asked():
    assert {path.stem for path in FOLDER.glob("*.py")} == {*ASKED} | IMPORTED | GPU


@pytest.mark.long
@pytest.mark.parametrize("name", ASKED)
def test_a_program_measures(name, tmp_path):
    if name == "cuda_kernels":
        pytest.importorskip("cuda.bindings.nvrtc")
    if name == "mixed_precision":
        pytest.importorskip("torch")
        if NO_BFLOAT16:
            pytest.skip("needs AVX512_BF16 or AMX")
    asked, shown = ASKED[name]
    arguments = FOLDER / f"{name}.py", *asked.format(folder=tmp_path / "out").split()
    cache = {"MINIGRAPH_CACHE_DIR": str(tmp_path / "cache")}
    printed, _ = (
        wait(start(2, *arguments, **cache)) if name in TOGETHER else python(*arguments, **cache)
    )
    assert shown in printed
    if "{folder}" in asked:
        assert os.listdir(tmp_path / "out")
