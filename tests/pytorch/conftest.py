"""Fixtures of the tests of `minigraph.torch`."""

import pytest


@pytest.fixture(autouse=True)
def one_thread(torch):
    """Let PyTorch compute in one thread, and draw the same numbers in every run."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)
