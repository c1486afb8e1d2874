"""One text of metrics out of several: the front's own, and its replicas'."""

import re
from collections.abc import Iterable

_ABOUT = re.compile(r"# (HELP|TYPE) (?P<name>\S+) ")
_SAMPLE = re.compile(r"(?P<name>[a-zA-Z_:][\w:]*)(\{(?P<labels>.*)\})? (?P<rest>[^{}]+)")


def merge_metrics(own: str, texts: Iterable[tuple[str, str]]) -> str:
    """Put a front's metrics and its replicas' together, these labelled with their replica.

    Args:
        own: What the front counts itself, in Prometheus' text format.
        texts: Each replica's name and what it shows.

    Returns:
        One text, in which a metric's samples stand together and it is described once.
    """
    abouts: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for replica_id, text in [(None, own), *texts]:
        family = ""
        is_described = set(abouts)
        for line in text.splitlines():
            if about := _ABOUT.match(line):
                family = about["name"]
                samples.setdefault(family, [])
                if family not in is_described:
                    abouts.setdefault(family, []).append(line)
            elif replica_id is None:
                samples.setdefault(family, []).append(line)
            elif sample := _SAMPLE.fullmatch(line):
                own = f",{sample['labels']}" if sample["labels"] else ""
                labelled = f'{sample["name"]}{{replica="{replica_id}"{own}}} {sample["rest"]}'
                samples.setdefault(family, []).append(labelled)
    lines = [line for name, found in samples.items() for line in (*abouts.get(name, ()), *found)]
    return "".join(f"{line}\n" for line in lines)
