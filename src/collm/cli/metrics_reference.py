"""The tables of docs/metrics.md, made from the code that exports.

``python -m collm.cli.metrics_reference docs/metrics.md`` renews what stands between the page's two
markers; a test says when that is due.
"""

import sys
from collections.abc import Iterable
from pathlib import Path

from collm.metrics.exporter import ReplicaMetrics
from collm.metrics.front import FrontMetrics
from collm.metrics.metric_set import Definition
from collm.pacing.config import PacingConfig

BEGIN = "<!-- made by collm.cli.metrics_reference: begin -->"
END = "<!-- made by collm.cli.metrics_reference: end -->"

_MODEL = "model_name"


def metrics_reference() -> str:
    """Return a table for each exporter, as Markdown."""
    replica = ReplicaMetrics("", PacingConfig())
    parts = (
        "### Serving, on a replica",
        f"Each of these carries `{_MODEL}`, the base model's id.",
        _table(replica.serving_definitions),
        "### Learning, on a replica",
        _table(replica.learning_definitions),
        "### On a front",
        _table(FrontMetrics().definitions),
    )
    return "\n\n".join(parts)


def with_reference(page: str) -> str:
    """Return a page with what stands between its markers replaced."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{metrics_reference()}\n\n{END}{after}"


def _table(definitions: Iterable[Definition]) -> str:
    rows = ["| metric | type | labels | what |", "|---|---|---|---|"]
    for one in definitions:
        labels = ", ".join(f"`{label}`" for label in one.labels if label != _MODEL)
        rows.append(f"| `{one.name}` | {one.kind} | {labels} | {one.text} |")
    return "\n".join(rows)


if __name__ == "__main__":
    file = Path(sys.argv[1])
    file.write_text(with_reference(file.read_text(encoding="utf-8")), encoding="utf-8")
