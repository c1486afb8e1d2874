"""What every kind of demo is given and hands back to the command."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

from rich.console import Console, RenderableType

from collm.cli.demo_server import ServerEndedError
from collm.cli.demo_session import View, Watched
from collm.cli.demo_settings import DemoSettings
from collm.cli.demo_traffic import Traffic
from collm.cli.demo_view import LineView, LiveView

P = TypeVar("P", bound=Watched)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Where and with what a demo runs."""

    settings: DemoSettings
    traffic: Traffic
    serve: Sequence[str]
    """Starts a server, given ``--config FILE``."""
    console: Console
    is_live: bool
    """Whether the console can show a live screen."""

    def command(self, configuration: Path) -> list[str]:
        """Return what starts the server of a configuration file."""
        return [*self.serve, "--config", str(configuration)]

    def view(
        self,
        draw: Callable[[P, float, int], RenderableType],
        line: Callable[[P, float], str],
    ) -> AbstractContextManager[View[P]]:
        """Return the view that suits the console."""
        view: Any = LiveView(self.console, draw) if self.is_live else LineView(self.console, line)
        return cast("AbstractContextManager[View[P]]", view)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a demo came to."""

    tables: RenderableType
    report: Path
    is_clean: bool
    """Whether no request failed, was turned away, or mixed versions."""
    error: ServerEndedError | None
    """How the server ended, if it did by itself."""
