"""Upper bounds of histograms' buckets: wide enough for a small GPU model and a busy CPU alike."""

TOKEN_BUCKETS_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0,
    15.0,
)  # fmt: skip
"""Times between tokens; 0.1 is the default objective."""

LATENCY_BUCKETS_S = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8, 1.5, 3.0, 6.0, 15.0, 30.0, 60.0,
    120.0, 300.0, 600.0,
)  # fmt: skip
"""Waits and whole answers, from a GPU's first token to a long answer on a CPU; 0.8 is the default
objective for the first token."""

QUANTUM_BUCKETS_S = (
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.06, 0.1, 0.2, 0.5, 1.0,
)  # fmt: skip
"""Quanta of training; 0.04 is the default bound."""

LENGTH_BUCKETS = (
    1,
    2,
    5,
    10,
    20,
    50,
    100,
    200,
    500,
    1000,
    2000,
    5000,
    10_000,
    20_000,
    50_000,
    100_000,
)
"""Tokens of a prompt or an answer."""

ROUND_BUCKETS_S = (0.1, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0)
"""Stages of a federated round."""
