"""Sizes that are known only when a function is called, and what is computed with them.

An input of shape (None, 784) has a symbolic size.  Shape rules, gradients and layers compute with
it as they do with an integer: a polynomial of named sizes, each at least 1.  When a function is
called, `graph.with_sizes` puts integers in their places, and the graph is one like all others.
`jax.export` and `torch.export` do the same with symbolic dimensions.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from minigraph.errors import ShapeError

Atom = Any  # the name of a size, or (operation, x, y) for what is no polynomial
Term = tuple[Atom, ...]  # the factors of a product
OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "//": operator.floordiv,
    "%": operator.mod,
    "/": operator.truediv,
    "**": operator.pow,
}


class UndecidedSize(ShapeError):
    """Raised where a decision depends on a size that is not known yet."""


class _Rules(threading.local):
    large = False  # whether sizes that are not known count as large in comparisons


_rules = _Rules()


@contextmanager
def taken_as_large() -> Iterator[None]:
    """Compare sizes as if the unknown ones were large.

    Only for checks that are made again once the sizes are known.
    """
    before, _rules.large = _rules.large, True
    try:
        yield
    finally:
        _rules.large = before


if TYPE_CHECKING:  # to the type checker a size is an integer: what takes one takes the other
    _Integer = int
else:
    _Integer = object


class SymbolicSize(_Integer):
    """A polynomial of named sizes, of which at least one is in it.

    Two are equal if they are for all values.  `<` and the like are decided where the answer is the
    same for all values from 1 on, and raise UndecidedSize elsewhere.
    """

    __slots__ = ("terms",)

    if TYPE_CHECKING:

        def __new__(cls, terms: Mapping[Term, float]) -> SymbolicSize: ...

    def __init__(self, terms: Mapping[Term, float]) -> None:
        self.terms = terms

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymbolicSize) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(frozenset(self.terms.items()))

    def __add__(self, other: Any) -> Any:
        if (terms := _terms(other)) is None:
            return NotImplemented
        return _made({t: self.terms.get(t, 0) + terms.get(t, 0) for t in {**self.terms, **terms}})

    def __mul__(self, other: Any) -> Any:
        if (terms := _terms(other)) is None:
            return NotImplemented
        total: dict[Term, float] = {}
        for (s, a), (t, b) in itertools.product(self.terms.items(), terms.items()):
            term = tuple(sorted((*s, *t), key=repr))
            total[term] = total.get(term, 0) + a * b
        return _made(total)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self + other * -1 if _terms(other) is not None else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return self * -1 + other

    def __floordiv__(self, other: Any) -> Any:
        return _divided("//", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _divided("//", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _divided("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _divided("/", other, self)

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other

    def __rmod__(self, other: Any) -> Any:
        return other - other // self * self

    def __pow__(self, other: Any, modulo: Any = None) -> Any:
        if isinstance(other, int) and 0 < other < 10:
            return functools.reduce(operator.mul, [self] * other)
        return _made({(("**", self, other),): 1})

    def __rpow__(self, other: Any, modulo: Any = None) -> Any:
        return _made({(("**", other, self),): 1})

    def __lt__(self, other: Any) -> bool:
        return _positive(other - self, self, other)

    def __gt__(self, other: Any) -> bool:
        return _positive(self - other, self, other)

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        """Return whether it may be above 0: arrays without elements are not what is planned for."""
        return _bounds(self)[1] > 0

    def __index__(self) -> NoReturn:
        raise UndecidedSize(
            f"the size {self} is known only when the function is called, and a number is needed "
            "here; ops.zeros(x.shape) and the like take sizes, else give the input's shape in "
            "numbers"
        )

    __int__ = __trunc__ = __index__

    def __float__(self) -> NoReturn:
        raise UndecidedSize(
            f"the size {self} is known only when the function is called, and math and NumPy take "
            "numbers; ops.sqrt(x.shape[0]) and the like take sizes"
        )

    def __array__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        self.__float__()

    def __str__(self) -> str:
        # A number comes last, what is subtracted before it.
        terms = sorted(self.terms.items(), key=lambda item: (not item[0], item[1] < 0))
        text = "".join(f" {'-' if n < 0 else '+'} {_shown(term, abs(n))}" for term, n in terms)
        return text.removeprefix(" + ") if text.startswith(" + ") else f"-{text[3:]}"

    __repr__ = __str__

    @property
    def multiple(self) -> tuple[str, int] | None:
        """The name of which this is a multiple, and how many times; None if it is none."""
        match [*self.terms.items()]:
            case [((str(name),), int(times))] if times > 0:
                return name, times
        return None

    @property
    def names(self) -> frozenset[str]:
        """The names of the sizes that this is computed from."""
        return frozenset(name for term in self.terms for atom in term for name in _names(atom))

    def at(self, sizes: Mapping[str, int]) -> Any:
        """Return the number that this is for these sizes."""
        return sum(
            factor * math.prod(_value(atom, sizes) for atom in term)
            for term, factor in self.terms.items()
        )


def named(name: str) -> SymbolicSize:
    """Return the size called `name`."""
    return SymbolicSize({(name,): 1})


def is_symbolic(shape: Iterable[Any]) -> bool:
    """Return whether a size of a shape is not known."""
    return any(isinstance(n, SymbolicSize) for n in shape)


def put(value: Any, sizes: Mapping[str, int]) -> Any:
    """Return an attribute of an op, a tuple or a record too, with numbers for its sizes."""
    if isinstance(value, SymbolicSize):
        return value.at(sizes)
    if type(value) is tuple:
        made = tuple(put(each, sizes) for each in value)
        return value if all(map(operator.is_, made, value)) else made
    if is_dataclass(value) and not isinstance(value, type):
        given = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        new = {name: put(each, sizes) for name, each in given.items()}
        changed = {name: each for name, each in new.items() if each is not given[name]}
        return replace(value, **changed) if changed else value
    return value


def not_broadcast(shapes: Sequence[tuple[int, ...]]) -> ShapeError:
    """Return the error for shapes that have no common one."""
    given = " and ".join(map(str, shapes))
    text = f"shapes {given} do not broadcast: along an axis, sizes are equal or 1"
    return ShapeError(text + of_multiples(shapes))


def of_multiples(shapes: Iterable[tuple[int, ...]]) -> str:
    """Return what to do if shapes hold a size that is divided and may leave a rest, else ""."""
    sizes = (n for shape in shapes for n in shape if isinstance(n, SymbolicSize))
    divided = any(isinstance(a, tuple) and a[0] == "//" for n in sizes for t in n.terms for a in t)
    return "; a size '32*h' of an input leaves no rest when it is halved" if divided else ""


def broadcast_shapes(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return NumPy's broadcast shape; a size that calls give equals itself only, also if it is 1.

    ShapeError if there is none.
    """
    axes = itertools.zip_longest(*map(reversed, shapes), fillvalue=1)
    sizes = [{n for n in axis if n != 1} or {1} for axis in axes]
    if any(len(each) > 1 for each in sizes):
        raise not_broadcast(shapes)
    return tuple(each.pop() for each in reversed(sizes))


def _terms(value: Any) -> Mapping[Term, float] | None:
    if isinstance(value, SymbolicSize):
        return value.terms
    return {(): value} if isinstance(value, int | float) else None


def _made(terms: Mapping[Term, float]) -> Any:
    """Return a polynomial, or a number if no size is left in it."""
    left = {term: factor for term, factor in terms.items() if factor}
    return SymbolicSize(left) if any(left) else left.get((), 0)


def _divided(operation: str, x: Any, y: Any) -> Any:
    """Return x / y or x // y: a polynomial where the division leaves no rest.

    What an integer divides of x is taken out of x // y, so that (2 * n + 1) // 2 is n.
    """
    above, below = _terms(x), _terms(y)
    if above is None or below is None:
        return NotImplemented
    if not any(above.values()):
        return 0
    if operation == "//" and isinstance(y, int) and y > 0 and all(map(_is_whole, above.items())):
        whole = _made({term: factor // y for term, factor in above.items()})
        if (rest := _made({term: factor % y for term, factor in above.items()})) != x:
            return whole + rest // y
    if len(below) == 1:
        ((factors, number),) = below.items()
        quotient: dict[Term, float] = {}
        for term, factor in above.items():
            rest = _without(term, factors)
            if rest is None or not number or factor % number:
                break
            quotient[rest] = factor // number
        else:
            return _made(quotient)
    elif above == below:
        return 1
    return _made({((operation, x, y),): 1})


def _is_whole(item: tuple[Term, float]) -> bool:
    """Return whether a term of a polynomial is an integer for all sizes."""
    term, factor = item
    return isinstance(factor, int) and all(isinstance(a, str) or a[0] == "//" for a in term)


def _names(atom: Atom) -> Iterator[str]:
    if isinstance(atom, str):
        yield atom
    else:
        for value in atom[1:]:
            yield from value.names if isinstance(value, SymbolicSize) else ()


def _without(term: Term, factors: Term) -> Term | None:
    """Return the product `term` without some of its factors; None if it lacks one of them."""
    rest = list(term)
    for factor in factors:
        if factor not in rest:
            return None
        rest.remove(factor)
    return tuple(rest)


def _positive(difference: Any, x: Any, y: Any) -> bool:
    """Return whether x - y, or y - x, is above 0 for all sizes; False if it is for none."""
    if not isinstance(difference, SymbolicSize):
        return bool(difference > 0)
    lowest, highest = _bounds(difference)
    if lowest > 0 or highest <= 0:
        return lowest > 0
    if _rules.large:
        return bool(difference.at(_Large()) > 0)
    raise UndecidedSize(
        f"how {x} compares with {y} is known only when the function is called; give the input's "
        "shape in numbers"
    )


def _bounds(value: Any) -> tuple[float, float]:
    """Return numbers that `value` is never below, and never above."""
    if not isinstance(value, SymbolicSize):
        return value, value
    # Each size is its least value + something not negative, of which this is a polynomial.
    least = {atom: _least(atom) for term in value.terms for atom in term}
    if -math.inf in least.values():
        return -math.inf, math.inf
    over: Any = 0
    for term, factor in value.terms.items():
        over = over + math.prod((SymbolicSize({(a,): 1}) + least[a] for a in term), start=factor)
    terms = dict(_terms(over) or {})
    constant = terms.pop((), 0)
    factors = terms.values()
    return (
        constant if min(factors, default=0) >= 0 else -math.inf,
        constant if max(factors, default=0) <= 0 else math.inf,
    )


def _least(atom: Atom) -> float:
    """Return a number that a size, a division or a power is never below."""
    if isinstance(atom, str):
        return 1
    operation, x, y = atom
    low = _bounds(x)[0]
    if operation == "//" and isinstance(y, int) and y > 0:
        return low if math.isinf(low) else low // y
    return 0 if low >= 0 and _bounds(y)[0] > 0 else -math.inf


class _Large(dict[str, int]):
    """Sizes that are all large, and different from what programs write."""

    def __missing__(self, name: str) -> int:
        return 1_000_003


def _value(atom: Atom, sizes: Mapping[str, int]) -> Any:
    if isinstance(atom, str):
        return sizes[atom]
    operation, x, y = atom
    return OPERATIONS[operation](put(x, sizes), put(y, sizes))


def _shown(term: Term, factor: float) -> str:
    atoms = [
        a if isinstance(a, str) else f"({_operand(a[1])} {a[0]} {_operand(a[2])})" for a in term
    ]
    return "*".join([*([f"{factor:g}"] if factor != 1 or not atoms else []), *atoms])


def _operand(x: Any) -> str:
    return f"({x})" if isinstance(x, SymbolicSize) and len(x.terms) > 1 else str(x)
