"""Every case of benchmarks/compare.py, and every program beside it, measures something small."""

import os
from pathlib import Path

import compare
import pytest
from launched import start
from needs import NO_BFLOAT16
from new_process import python, wait

FOLDER = Path(__file__).parents[2] / "benchmarks"
IMPORTED = {"sass"}  # by the programs
GPU = {"nccl_bucket"}
SMALL = "resnet20 --quick --batch-size 2 --turns 1 --budget 0.01"
# What each is asked for, and what it then prints beside other things.
CASES = {
    "bfloat16": (SMALL, "| minigraph, bfloat16 | - |"),
    "growth": ("--nodes 100", "unrolled"),
    "memory": ("mlp", "| MLP"),
    "memory-limit": (SMALL, "| 80% |"),
    "saved-activations": (SMALL, "| bfloat16 |"),
    "scaling": ("mlp --quick --budget 0.01", "2 processes"),
    "start": ("mlp --quick --steps 2", "| mlp | off | filled |"),
    "trace": ("--top 3", "compile"),
    "without-onednn": (SMALL, "| own kernels |"),
}
PROGRAMS = {
    "cuda_kernels": ("mlp --rows 2", "texts | "),
    "first_contact": ("--device cpu", "column reduction"),
    "profile_training": ("mlp --device cpu --quick --budget 0 --out {folder}", ""),
}
TOGETHER = {"scaling"}  # by a launcher of MPI


def test_every_case_and_program_is_asked():
    assert compare.CASES.keys() == CASES.keys()
    others = {path.stem for path in FOLDER.glob("*.py")} - {"compare"}
    assert others == {*PROGRAMS} | IMPORTED | GPU


def test_the_cases_are_listed_with_a_sentence_each(capsys):
    compare.main(["--list"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [*compare.CASES]
    assert all(line.endswith(".") and len(line.split()) > 5 for line in lines)


def test_a_case_that_takes_several_processes_says_so_in_one():
    with pytest.raises(SystemExit, match=r"several processes: mpiexec -n 2 python benchmarks/"):
        compare.main(["scaling", "mlp"])


@pytest.mark.long
@pytest.mark.parametrize("name", [*CASES, *PROGRAMS])
def test_it_measures(name, tmp_path):
    if name == "cuda_kernels":
        pytest.importorskip("cuda.bindings.nvrtc")
    if name == "bfloat16" and NO_BFLOAT16:
        pytest.skip("needs AVX512_BF16 or AMX")
    asked, shown = (CASES | PROGRAMS)[name]
    program = (FOLDER / "compare.py", name) if name in CASES else (FOLDER / f"{name}.py",)
    arguments = *program, *asked.format(folder=tmp_path / "out").split()
    cache = {"MINIGRAPH_CACHE_DIR": str(tmp_path / "cache")}
    printed, _ = (
        wait(start(2, *arguments, **cache)) if name in TOGETHER else python(*arguments, **cache)
    )
    assert shown in printed
    if "{folder}" in asked:
        assert os.listdir(tmp_path / "out")
