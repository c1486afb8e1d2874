"""What happened to requests, and the figures made from it; ``docs/metrics.md`` has the formulas."""
