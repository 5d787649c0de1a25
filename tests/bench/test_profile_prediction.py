"""`benchmarks/profile_prediction.py`."""

import profile_prediction
import pytest


@pytest.mark.long
def test_a_profile_of_a_prediction_tells_the_time_of_a_call_and_of_layers(monkeypatch, capsys):
    asked = ["resnet18-1", "--quick", "--threads", "1", "--budget", "0"]
    monkeypatch.setattr("sys.argv", ["profile_prediction.py", *asked])
    profile_prediction.main()
    found = capsys.readouterr().out
    assert found.startswith("a call ") and "layer" in found and "conv2d by" in found
