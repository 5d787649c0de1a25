"""Some of each attack of `tools/attack.py`, and whether attacks find what they look for."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from attacks import (
    crowds,
    damage,
    files,
    folders,
    interrupts,
    kills,
    launches,
    numbers,
    races,
    sanitized,
)
from long_runs import long, mostly_long
from needs import needs_compiler
from new_process import python, start, wait
from other_user import as_root

checked = pytest.mark.skipif(not sanitized.environment(), reason="gcc has no AddressSanitizer")
TOOLS = Path(__file__).parent.parent / "tools"


# ---------------------------------------------------------------- numbers


@needs_compiler
@pytest.mark.parametrize("seed, count", [(0, 2), *(long(seed, 12) for seed in range(4))])
def test_no_level_changes_what_random_graphs_mean(seed, count):
    assert numbers.graphs(seed, count)["graphs"] == count


@needs_compiler
@pytest.mark.parametrize("seed", mostly_long([3, *range(4)], 1))
def test_kernels_stay_within_their_arrays_and_agree_with_numpy(seed):
    assert numbers.kernels(seed)["steps"]


@needs_compiler
@pytest.mark.parametrize("seed", mostly_long(range(12), 2))
def test_every_candidate_stays_within_its_arrays_and_agrees_with_numpy(seed):
    assert numbers.candidates(seed)["candidates"]


@needs_compiler
@checked
@pytest.mark.parametrize(
    "attack",
    [
        "numbers.graphs(5, 1)",
        long("numbers.kernels(1)"),
        long("numbers.candidates(2)"),
        long("sanitized.small_networks(0)"),
    ],
)
def test_sanitizers_find_nothing_in_kernels(attack):
    program = "from attacks import numbers, sanitized\nsanitized.sanitized(0, lambda seed: "
    python("-c", f"{program}{attack})", **sanitized.environment())


READS = """
import numpy as np
import minigraph as mg
from attacks import fences, sanitized
from minigraph.devices.cpu import compiler
from minigraph.devices.cpu.kernel import NativeKernel, call
from minigraph.devices.cpu.kernel import KernelRunner
from minigraph.graph import Spec

if fences.SANITIZED:
    compiler.FLAGS = (*compiler.FLAGS, *sanitized.FLAGS)
kernel = NativeKernel(mg.input("x", (5,)), [call(sys.argv[1], int(sys.argv[2]))])
x, y = (fences.empty(Spec((n,), np.dtype(np.float32)), int(sys.argv[3]), sys.argv[4] == "end")
        for n in (5, 1))
KernelRunner(kernel, on_disk=False).run([x], [y], fences.empty(Spec((0,), np.dtype(np.uint8))))
"""
KERNEL = """
int NAME(const int64_t *a, char **slots) {
  const float *x = (const float *)(slots[a[1]] + a[2]);
  *(volatile float *)(slots[a[3]] + a[4]) = %s;
  return 0;
}
"""


def ran(expression, number, alignment=4, at="end", status=0, **environment):
    """Run a kernel that reads 5 numbers x, and return what its process says at its end."""
    text = KERNEL % expression
    program = f"import sys\n{READS}"
    return python("-c", program, text, number, alignment, at, status=status, **environment)[1]


@needs_compiler
@pytest.mark.parametrize("number, at", [(5, "end"), (-1, "begin")])
def test_a_kernel_that_reads_beside_an_array_is_found_by_the_fence(number, at):
    ran("x[a[0]]", number, at=at, status=-signal.SIGSEGV)


@needs_compiler
@checked
@pytest.mark.parametrize(
    "expression, number, report",
    [
        ("x[a[0]]", 5, "AddressSanitizer"),  # between the end and the fence
        ("1 << a[0]", 40, "shift exponent"),
    ],
)
def test_sanitizers_find_mistakes_of_kernels(expression, number, report):
    assert report in ran(expression, number, 64, status=1, **sanitized.environment())


# ---------------------------------------------------------------- calls


@pytest.mark.parametrize(
    "seed, count", [*((seed, 40) for seed in (*range(8), 12, 38, 41)), long(9, 5_000)]
)
def test_an_interrupted_call_is_done_or_not_done(seed, count):
    assert interrupts.interrupted_calls(seed, count)["interrupts"] == count


@pytest.mark.parametrize("seed", mostly_long(range(8), 3))
def test_functions_in_threads_that_share_parameters_lose_no_update_and_mix_no_values(seed):
    assert races.shared_parameters(seed)["increments"] == 240


@pytest.mark.parametrize("seed", mostly_long(range(4), 1))
def test_a_graph_may_be_used_from_eight_threads_in_every_way(seed, tmp_path):
    assert races.shared_graph(seed, tmp_path)["functions compiled"]


# ---------------------------------------------------------------- files


@needs_compiler
@pytest.mark.parametrize("seeds", [range(1), long(range(1, 6))], ids=len)
def test_a_damaged_cache_gives_right_results_and_heals(seeds, tmp_path, monkeypatch):
    whole = tmp_path / "whole"
    whole.mkdir(mode=0o700)
    monkeypatch.setattr(damage, "_prepared", lambda: whole)
    damage.whole_cache.cache_clear()
    for seed in seeds:
        (tmp_path / str(seed)).mkdir(mode=0o700)
        assert damage.damaged_cache(seed, tmp_path / str(seed))["files damaged"]


@needs_compiler
@pytest.mark.parametrize(
    "name, count", [("save_cache", 3), *(long(name, 3) for name in kills.ACTIVITIES)]
)
def test_a_kill_loses_nothing_that_was_done_and_leaves_nothing_that_grows(name, count, tmp_path):
    assert kills.killed_while(name, 0, tmp_path, count)[f"{name}: kills"] == count


@pytest.mark.parametrize("kills, processes", [(1, 2), long(100, 4)])
def test_where_one_of_several_processes_is_killed_all_end_and_the_training_goes_on(
    kills, processes, tmp_path
):
    counts = launches.killed_launches(0, tmp_path, kills, processes)
    assert counts["kills"] == kills and counts["slowest end, ms"] < 10_000


def test_every_reader_answers_to_every_kind_of_file_in_one_line(tmp_path):
    assert files.odd_files(0, tmp_path)["files refused in a line"] > 100


@as_root
@pytest.mark.parametrize("seed", range(5))
def test_folders_on_the_way_to_the_cache_are_trusted_where_only_we_can_change_them(seed):
    counts = folders.ancestors(seed)
    assert counts["folders trusted"] and counts["folders refused"]


# ---------------------------------------------------------------- processes


@pytest.mark.parametrize("seed", [long(1), long(2)])
def test_forked_children_call_compile_and_tune(seed):
    assert crowds.forks(seed)["forked children"]


@needs_compiler
@pytest.mark.long
def test_processes_that_start_together_on_an_empty_cache_leave_nothing_to_do(tmp_path):
    assert crowds.crowd(0, tmp_path)["crowds"] == 1


# ---------------------------------------------------------------- the script


def test_the_script_finds_the_folders_that_attacks_import_from(monkeypatch):
    monkeypatch.delenv("PYTHONPATH", raising=False)
    command = [sys.executable, TOOLS / "attack.py", "--only", "folders", "--seed", "0"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


ATTACKS = """
import os
from types import SimpleNamespace

def broken(seed, folder):
    os.abort()

def sound(seed, folder):
    return {"done": 1}

ATTACKS = {
    function.__name__: SimpleNamespace(attack=function, seconds=15.0, environment=dict)
    for function in (broken, sound)
}
"""


def test_the_script_counts_what_attacks_did_and_names_the_seed_of_one_that_fails(tmp_path):
    attacks = tmp_path / "tools" / "attacks"
    attacks.mkdir(parents=True)
    (attacks / "__init__.py").touch()
    (attacks / "table.py").write_text(ATTACKS)
    script = attacks.parent / "attack.py"
    script.write_text((TOOLS / "attack.py").read_text())
    (tmp_path / "minigraph").symlink_to(TOOLS.parent / "minigraph")
    report = tmp_path / "report.json"
    printed, _ = wait(start(script, "--seed", 7, "--minutes", 0, "--json", report), status=1)
    assert "--seed 7 --only broken" in printed and "none failed: 1 done" in printed
    parts = json.loads(report.read_text())["parts"]
    assert [*parts["broken"]["failures"]] == ["7"]
    assert parts["sound"] == {"attempts": 1, "counts": {"done": 1}, "failures": {}}
