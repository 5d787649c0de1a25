"""The attacks by name: the parts of `tools/attack.py`."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from attacks import sanitized
from attacks.crowds import crowds
from attacks.damage import damaged_cache
from attacks.files import odd_files
from attacks.folders import ancestors
from attacks.interrupts import interrupted_calls
from attacks.kills import killed
from attacks.numbers import candidates, graphs, kernels
from attacks.races import races


def no_variables() -> Mapping[str, str]:
    return {}


class Attack(NamedTuple):
    """An attack with its limits.

    attack       called with a seed and an empty folder, returns counts
    seconds      limit of an attempt, which fails if it takes longer
    environment  returns the environment variables that its process needs
    """

    attack: Callable[[int, Path], Mapping[str, int]]
    seconds: float = 180.0
    environment: Callable[[], Mapping[str, str]] = no_variables


ATTACKS = {
    "graphs": Attack(lambda seed, _: graphs(seed)),
    "kernels": Attack(lambda seed, _: kernels(seed)),
    "candidates": Attack(lambda seed, _: candidates(seed)),
    "sanitizers": Attack(lambda seed, _: sanitized.sanitized(seed), 900, sanitized.environment),
    "damage": Attack(damaged_cache),
    "kills": Attack(killed),
    "interrupts": Attack(lambda seed, _: interrupted_calls(seed)),
    "races": Attack(races),
    "files": Attack(odd_files),
    "folders": Attack(lambda seed, _: ancestors(seed)),
    "crowds": Attack(crowds, 400),
}
