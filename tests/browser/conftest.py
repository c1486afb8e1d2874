"""One browser for a file's tests, and fronts that it looks at."""

from collections.abc import Iterator

import pytest

from factories.browser import Browser, running_browser
from factories.dashboard_front import DashboardFront, dashboard_front
from factories.dashboard_history import show
from factories.dashboard_rounds import Rounds


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with running_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def front() -> Iterator[DashboardFront]:
    with dashboard_front(rounds=Rounds()) as front:
        yield front


@pytest.fixture(scope="module")
def filled_front() -> Iterator[DashboardFront]:
    with dashboard_front() as front:
        front.call(lambda server: show(server.app.state.dashboard))
        yield front
