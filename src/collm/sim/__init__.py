"""A cluster on a virtual clock: its deciders run as they are, its devices are modelled."""
