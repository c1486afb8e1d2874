"""Traces, sample sets, the requests made from them, and a client that replays them on time."""
