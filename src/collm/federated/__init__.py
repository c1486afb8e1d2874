"""Federated rounds: plans and reports, how updates are combined, what a pooled gate decides.

Free of torch: ``rounds``, ``verdict``, ``weights``, ``aggregate_plan`` and ``fields``.
"""
