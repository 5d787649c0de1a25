"""What functions write: pages, graphs, traces."""

import numpy as np
import pytest

import minigraph as mg


@pytest.mark.parametrize("method", ["to_html", "to_dot", "to_chrome_trace"])
def test_a_text_that_cannot_be_written_is_an_error_of_one_line(method, tmp_path):
    x = mg.input("x", (2,))
    function = mg.comp_graph("reference").compile([x], x + 1)
    writer = function.profile(np.ones(2)) if method == "to_chrome_trace" else function
    path = tmp_path / "missing" / "file"
    with pytest.raises(mg.GraphError) as raised:
        getattr(writer, method)(path)
    assert str(raised.value) == f"{path} cannot be written: No such file or directory"
