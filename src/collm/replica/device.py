"""The device that a replica computes on, by the name that its configuration gives."""

import torch

from collm.errors import ConfigError


def find_device(name: str) -> torch.device:
    """Return a device that torch sees on this machine.

    Args:
        name: ``cpu`` or ``cuda:N``, as ``replica.device`` allows.

    Raises:
        ConfigError: torch does not see it.
    """
    device = torch.device(name)
    if device.type == "cpu":
        return device
    num_seen = torch.cuda.device_count()
    if device.index >= num_seen:
        build = "" if torch.version.cuda else "; this build of torch has no CUDA"
        raise ConfigError(
            f"replica.device is {name!r}, but torch sees {num_seen} CUDA devices here{build}"
        )
    return device
