"""The world: what processes agree on, and how one that fails ends all of them."""

import re
import sys

import pytest
from launched import start
from long_runs import long
from new_process import wait

import minigraph as mg
from minigraph import options
from minigraph.distributed.world import grouped_activities
from minigraph.errors import install_command
from minigraph.platform import launcher

FAIL = """
import os, sys
import minigraph as mg
sys.modules["minigraph.distributed.world"].END_CHECK_SECONDS = 0.1
world = mg.distributed.world()
if world.rank == 1:
    {}
world.barrier(timeout=100)
"""


# An exit without an error is noticed at the second check by who waits; MPICH names who is killed.
@pytest.mark.parametrize(
    ("fault", "status", "line"),
    [
        (
            "raise KeyError('missing')",
            1,
            r"KeyError: 'missing'\nminigraph: process 1 of 2 ends all",
        ),
        ("sys.exit()", 1, "process 0 waits for a barrier; process 1 has ended"),
        (
            "world.gather(0, timeout=1)",
            1,
            r"process 1 waited 1 s for values of all processes \(option distributed.timeout\): "
            "process 0 waits for a barrier; process 1 waits for values of all processes",
        ),
        long("os.kill(os.getpid(), 9)", 9, "EXIT CODE: 9"),
    ],
)
def test_a_process_that_fails_ends_all(fault, status, line):
    printed = "".join(wait(start(2, "-c", FAIL.format(fault)), status, timeout=60))
    assert re.search(line, printed), printed


def test_where_nothing_was_launched_there_is_one_process_and_no_mpi():
    world = mg.distributed.world()
    assert (world.rank, world.size) == (0, 1)
    world.barrier()
    assert (world.gather(3), world.broadcast(4), world.any(True)) == ([3], 4, True)
    assert "mpi4py" not in sys.modules
    with pytest.raises(mg.GraphError, match="one process has no communicator"):
        world.handle  # noqa: B018


def test_a_missing_library_is_named_where_processes_were_launched(monkeypatch):
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setitem(sys.modules, "mpi4py", None)
    mg.distributed.world.cache_clear()
    with pytest.raises(mg.GraphError, match=f"PMI_RANK .* {re.escape(install_command('mpi'))}"):
        mg.distributed.world()


@pytest.mark.parametrize(
    ("variables", "description"),
    [
        ({}, ("", 1)),
        ({"PMI_RANK": "1", "PMI_SIZE": "4"}, ("PMI_RANK", 4)),
        ({"OMPI_COMM_WORLD_SIZE": "3", "PMIX_RANK": "2"}, ("OMPI_COMM_WORLD_SIZE", 3)),
        ({"PMIX_RANK": "2"}, ("PMIX_RANK", None)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, ("", 1)),  # without an MPI
    ],
)
def test_launchers_are_known_by_their_variables(monkeypatch, variables, description):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert launcher.launched() == description


def test_processes_of_one_machine_share_its_cores(monkeypatch):
    monkeypatch.delenv("MINIGRAPH_NUM_THREADS", raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 8)
    monkeypatch.setattr(options, "cpus", lambda: 8)
    for count, threads in ((1, 8), (2, 4), (3, 2), (9, 1)):
        monkeypatch.setenv("MPI_LOCALNRANKS", str(count))
        assert options.num_threads(None) == threads
    monkeypatch.setattr(options, "cpus", lambda: 3)  # bound to three of them
    monkeypatch.setenv("MPI_LOCALNRANKS", "2")
    assert options.num_threads(None) == 3


def test_processes_that_do_the_same_are_described_together():
    texts = {0: "waits for a", 2: "waits for a", 3: ""}
    busy = "no collective: it computes, is stopped or hangs"
    expected = f"each of processes 0, 2 waits for a; each of processes 1, 3 is in {busy}"
    assert grouped_activities(4, texts) == expected
    many = "each of processes 0, 1, 2, 3, 4, 5, 6, 7, 8 and 3 more has ended"
    assert grouped_activities(12, dict.fromkeys(range(12), "has ended")) == many
