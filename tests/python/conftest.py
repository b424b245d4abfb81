import pytest

from server import Server


@pytest.fixture(scope="session")
def server():
    with Server("--context", "8192", "--parallel", "4", "--queue", "8") as server:
        yield server
