"""The cache folder of a process that tuned the network of `small_network`, made once in a run."""

import pytest
from new_process import begin
from once import once
from small_network import compiled, work


def tuned_folder(parent):
    """Return a folder with a cache folder, `cache`, and the file of a function, `net.cache`."""
    return once(parent / "tuned", _make)


def _make(folder):
    with pytest.MonkeyPatch.context() as patch:
        begin(patch, folder / "cache")
        function = compiled(autotune="exhaustive")
        done = work()
        assert min(done) > 0
        compiled()
        assert work() == done, "what is measured and compiled is so again"
        function.save_cache(folder / "net.cache")
