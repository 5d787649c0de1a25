"""Moving averages of parameters."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from minigraph.arguments import checked
from minigraph.graph import Array, Node, Parameter, values_of
from minigraph.ops import astype
from minigraph.ops.elementwise import as_operand
from minigraph.optim.optimizer import Updates, check_unambiguous, user_name
from minigraph.optim.rule import Fraction, Parameters, accumulator, parameter_list
from minigraph.serialization import restore


class EMA:
    """Exponential moving averages of parameters (B. Polyak and A. Juditsky, 1992).

    Averages of 16-bit parameters are float32, in which small changes are not lost.

    decay  the share of the old average in the new one

    >>> w = mg.Parameter([1.0, -2.0])
    >>> sgd, ema = optim.SGD([w], lr=0.25), optim.EMA([w], decay=0.5)
    >>> updates = sgd.minimize((w * w).sum())
    >>> step = cg.compile([], [], {**updates, **ema.updates(updates)})
    >>> _ = step()
    >>> with ema.applied():
    ...     print(w.numpy())
    [ 0.75 -1.5 ]
    """

    @checked
    def __init__(self, parameters: Parameters, decay: Fraction = 0.999) -> None:
        self.decay = decay
        self._averages: dict[Parameter, Parameter] = {}
        self._state: dict[str, Parameter] = {}
        self._ambiguous_name: str | None = None  # that two parameters have
        for i, p in enumerate(parameter_list("EMA", parameters)):
            name = f"ema.{p.name}"
            if name in self._state:
                self._ambiguous_name, name = user_name(p) or self._ambiguous_name, f"{name}#{i}"
            self._averages[p] = self._state[name] = Parameter(
                p.numpy(), name, dtype=accumulator(p.dtype), trainable=False
            )

    def updates(self, updates: Mapping[Parameter, Node] | None = None) -> Updates:
        """Return the updates of the averages.

        updates  of the parameters in the same function, whose new values are averaged; without
                 them, the values at the start of a call are averaged
        """
        new: Updates = {}
        for p, average in self._averages.items():
            value = astype((updates or {}).get(p, p), average.dtype)
            decay, share = (as_operand(x, value.dtype) for x in (self.decay, 1 - self.decay))
            new[average] = average * decay + value * share
        return new

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Set the parameters to their averages within a block, in which nothing may train them."""
        before = {p: p.numpy() for p in self._averages}
        try:
            for p, average in self._averages.items():
                p.assign(average.numpy())
            yield
        finally:
            for p, value in before.items():
                p.assign(value)

    def state_dict(self) -> dict[str, Array]:
        """Return copies of the averages, by name; GraphError if two have the same name."""
        check_unambiguous("EMA.state_dict", self._ambiguous_name)
        return values_of(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Load a `state_dict()`; a misfit is a GraphError, which sets nothing."""
        restore("EMA.load_state_dict", self._state, state)
