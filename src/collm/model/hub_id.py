"""How a user names a model of the hub."""

import re
from dataclasses import dataclass

_HUB_ID = re.compile(r"(?P<model>[\w][\w.-]*/[\w][\w.-]*)(?:@(?P<revision>[\w][\w./-]*))?")


@dataclass(frozen=True, slots=True)
class HubId:
    """A model of the hub, and which state of it."""

    model_id: str
    """``organisation/model``"""
    revision: str | None
    """Branch, tag or commit; ``None`` is the hub's default branch."""


def parse_hub_id(source: str) -> HubId | None:
    """Return what ``organisation/model`` or ``organisation/model@revision`` names."""
    match = _HUB_ID.fullmatch(source)
    return None if match is None else HubId(match["model"], match["revision"])
