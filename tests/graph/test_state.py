"""The value of a parameter on several devices: `minigraph.graph.state`."""

import functools
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from minigraph.errors import DeviceError, GraphError
from minigraph.graph import Spec, State, aligned_empty
from minigraph.graph.state import Claim, run_exclusively


class Copy:
    def __init__(self, spec):
        self.value = np.zeros(spec.shape, spec.dtype)
        self.moves = []

    def upload(self, value):
        self.moves.append("up")
        self.value[...] = value

    def download(self, into):
        self.moves.append("down")
        into[...] = self.value


def test_a_copy_is_made_once_and_renewed_only_after_a_change():
    state = State.of(np.arange(3.0))
    copy = state.on("a", Copy)
    assert copy.value.tolist() == [0, 1, 2]
    assert state.on("a", Copy) is copy
    assert state.read().tolist() == [0, 1, 2]
    assert copy.moves == ["up"]
    state.write()[0] = 5
    assert state.on("a", Copy).value.tolist() == [5, 1, 2]
    assert copy.moves == ["up", "up"]


def test_the_host_sees_what_a_device_has_written():
    state = State.of(np.arange(3.0))
    copy = state.on("a", Copy)
    copy.value[...] = 7
    state.mark_written("a")
    assert state.read().tolist() == [7, 7, 7]
    assert state.read().tolist() == [7, 7, 7]
    assert copy.moves == ["up", "down"]


def test_a_second_device_gets_what_the_first_has_written():
    state = State.of(np.arange(3.0))
    one, two = state.on("a", Copy), state.on("b", Copy)
    one.value[...] = 4
    state.mark_written("a")
    assert state.on("b", Copy) is two
    assert two.value.tolist() == [4, 4, 4]
    two.value[...] = 9
    state.mark_written("b")
    assert state.on("a", Copy).value.tolist() == [9, 9, 9]
    assert state.read().tolist() == [9, 9, 9]


def test_a_value_may_lie_in_memory_of_others_and_move_to_another():
    here, there = (aligned_empty(Spec((3,), np.dtype("float64"))) for _ in range(2))
    here[...], there[...] = 1, 2
    state = State(Spec((3,), np.dtype("float64")))
    state.share_host_memory(here)
    state.write()[0] = 5
    assert here[0] == 5 and state.read() is here
    state.share_host_memory(there)
    assert state.read() is there
    with pytest.raises(DeviceError, match="is in memory of another library on the host"):
        state.on("a", Copy)
    read_only = there.copy()
    read_only.flags.writeable = False
    for wrong in (there[:2], there.astype("float32"), there[::-1], there.view(np.int64), read_only):
        with pytest.raises(GraphError, match="needs memory of the same shape and dtype"):
            state.share_host_memory(wrong)
    assert state.read() is there


def test_a_value_may_lie_in_memory_of_others_on_a_device():
    state = State.of(np.arange(3.0))
    there = Copy(state.spec)
    there.value[...] = 7
    state.share_device_memory("a", there)
    assert state.on("a", Copy) is there
    assert state.read().tolist() == [7, 7, 7]
    there.value[1] = 8  # as its owner may do at any time
    assert state.read().tolist() == [7, 8, 7]
    state.assign([1, 2, 3])
    assert there.value.tolist() == [1, 2, 3]
    for use in (state.write, state.on_host, lambda: state.on("b", Copy)):
        with pytest.raises(DeviceError, match="is in memory of another library on the a, "):
            use()


def test_a_change_on_the_host_keeps_the_rest_of_what_a_device_has_written():
    state = State.of(np.arange(3.0))
    copy = state.on("a", Copy)
    copy.value[...] = 7
    state.mark_written("a")
    state.write()[0] = 1
    assert state.on("a", Copy).value.tolist() == [1, 7, 7]


def test_the_memory_of_the_host_stays_where_it_is():
    state = State.of(np.arange(3.0))
    host = state.read()
    assert state.write() is host
    assert host.ctypes.data % 64 == 0


# ---------------------------------------------------------------- claims


def running(claim):
    """Run a claim in a thread; once it runs, return the event that ends it."""
    begun, end = threading.Event(), threading.Event()

    def work():
        begun.set()
        assert end.wait(30)

    thread = threading.Thread(target=claim.run, args=(work,))
    thread.start()
    assert begun.wait(30)
    return SimpleNamespace(end=lambda: (end.set(), thread.join(30)))


def waits(work):
    """Return whether `work` waits for another thread, and a function that ends it."""
    thread = threading.Thread(target=work)
    thread.start()
    thread.join(0.05)
    return thread.is_alive()


A, B, C = range(3)


@pytest.mark.parametrize(
    "first, second, together",
    [
        (([A], []), ([A], []), True),
        (([A], []), ([], [A]), False),
        (([], [A]), ([A], []), False),
        (([], [A]), ([], [A]), False),
        (([A], [B]), ([A], [C]), True),
        (([A], [B]), ([B], [A]), False),
        (([], []), ([], [A]), True),
        (([B], [A]), ([A], [C]), False),
    ],
)
@pytest.mark.parametrize("early", [True, False])
def test_claims_exclude_each_other_if_one_changes_what_the_other_uses(
    first, second, together, early
):
    states = [State.of(np.zeros(1)) for _ in range(3)]
    claims = []

    def claim(reads, changes):
        claims.append(Claim([states[i] for i in reads], [states[i] for i in changes]))

    claim(*first)
    if early:
        claim(*second)
    run = running(claims[0])
    try:  # a claim that is made while another one runs waits too
        work = (
            (lambda: claims[1].run(int)) if early else lambda: (claim(*second), claims[1].run(int))
        )
        assert waits(work) == (not together)
    finally:
        run.end()
    assert claims[0].run(lambda: 5) == 5


@pytest.mark.parametrize("reads, changes, reading, changing", [([A], [], 0, 1), ([], [A], 1, 1)])
def test_what_uses_a_value_by_itself_waits_for_claims(reads, changes, reading, changing):
    state, other = State.of(np.zeros(1)), State.of(np.zeros(1))
    claim = Claim([state for _ in reads], [state for _ in changes])
    run = running(claim)
    try:
        assert waits(lambda: run_exclusively([state], int, changes=False)) == reading
        assert waits(lambda: run_exclusively([state], int, changes=True)) == changing
        assert not waits(lambda: run_exclusively([other], int, changes=True))
    finally:
        run.end()


def test_a_claim_runs_within_itself_and_beside_its_own_values():
    state = State.of(np.zeros(1))
    one, other = Claim([], [state]), Claim([state], [])
    inner = functools.partial(other.run, lambda: run_exclusively([state], lambda: 7, changes=True))
    assert one.run(lambda: one.run(inner)) == 7


def test_many_claims_of_many_threads_wait_for_no_one_in_a_circle():
    states = [State.of(np.zeros(1)) for _ in range(4)]
    counts = np.zeros(4, int)

    def thread(seed):
        rng = np.random.default_rng(seed)
        for _ in range(60):
            reads, changes = (rng.choice(4, rng.integers(3), replace=False) for _ in range(2))
            claim = Claim([states[i] for i in reads], [states[i] for i in changes])

            def work(changes=changes):
                before = counts[changes]
                time.sleep(1e-4)
                counts[changes] = before + 1

            for _ in range(3):
                claim.run(work)
            done[seed] += np.bincount(changes, minlength=4) * 3

    done = np.zeros((8, 4), int)
    threads = [threading.Thread(target=thread, args=(i,), daemon=True) for i in range(8)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(60)
    assert not any(each.is_alive() for each in threads)
    np.testing.assert_array_equal(counts, done.sum(0))


def test_a_claim_that_is_gone_is_waited_for_no_more():
    state = State.of(np.zeros(1))
    kept = Claim([], [state])
    for _ in range(100):
        Claim([state], []).run(int)
    assert len(kept._locks) <= 2
    assert len(state._claims) <= 2
