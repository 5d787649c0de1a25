"""The tests that need a GPU, on a stand-in, so that machines without a GPU run them, too."""

from pathlib import Path

import pytest
from needs import needs_gpp
from new_process import python

for package in ("cupy", "cuda.bindings.driver", "cudnn"):
    pytest.importorskip(package)
FILES = Path(__file__).parent.glob("test_cuda_device*.py")


@needs_gpp
def test_each_test_of_the_device_runs_on_a_stand_in(tmp_path):
    options = ["-n", "0", "-m", "cuda", "-p", "stand_in_plugin", "--basetemp", tmp_path / "base"]
    printed, _ = python("-m", "pytest", *options, *FILES)
    assert " passed" in printed
