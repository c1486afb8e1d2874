"""Serve requests: queues, sequences, KV blocks and the runner that computes one step's plan."""
