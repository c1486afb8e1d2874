"""Adapters: files, flat states, device slots, versions and pins, active and shadow copies."""
