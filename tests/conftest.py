"""What all tests share."""

import pytest


def pytest_addoption(parser):
    parser.addoption("--update-golden", action="store_true", help="write tests/golden anew")


@pytest.fixture(scope="session", autouse=True)
def cache_folder(tmp_path_factory):
    """Keep the kernels of this run in a folder of its own, not in the user's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINIGRAPH_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        for name in ("BACKEND", "WORKDIR", "KEEP_INTERM"):
            patch.delenv(f"MINIGRAPH_JIT_{name}", raising=False)
        yield
