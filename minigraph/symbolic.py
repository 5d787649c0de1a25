"""Symbolic sizes, which are known only when a function is called, and their arithmetic.

An input of shape (None, 784) has a symbolic size.  Shape rules, gradients and layers compute with
it as they do with an integer: a size is a polynomial of named sizes, which count as at least 1.
When a function is called, `graph.with_sizes` substitutes integers, 0 too, for the names, infers
every shape again, and returns an ordinary graph.  `jax.export` and `torch.export` do the same.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NoReturn
from weakref import WeakValueDictionary

from minigraph.errors import ShapeError

# More than most arrays have rows, less than the bounds of slices that stand for all rows, such as
# `x[-100_000_000:]`, and a number that no program writes.
LARGE_SIZE = 50_000_017
SAMPLE_SIZES = (*range(1, 9), 31, 100, LARGE_SIZE)  # `<` compares sizes at these values
LARGE_SAMPLES = 12  # `==` compares sizes at this many large values of each name


class Operation:
    """An operation on two sizes or numbers whose result is not a polynomial, such as a quotient.

    Equal operations are the same object, because sizes of repeated slices share most of them.

    text  in messages, shortened if it is long
    """

    __slots__ = ("__weakref__", "is_integer", "name", "names", "text", "x", "y")

    is_integer: bool
    name: str
    names: frozenset[str]
    text: str
    x: Any
    y: Any

    def __new__(cls, name: str, x: Any, y: Any) -> Operation:
        key = name, _identity(x), _identity(y)
        if (existing := _operations.get(key)) is not None:
            return existing
        new = super().__new__(cls)
        new.name, new.x, new.y = name, x, y
        new.names = frozenset(n for v in (x, y) if isinstance(v, SymbolicSize) for n in v.names)
        integral = name != "/" and is_integer(x) and is_integer(y)
        new.is_integer = name == "ceil" or (
            integral and (name != "**" or _sampled_bounds(y)[0] >= 0)
        )
        pair = (f"({v})" if isinstance(v, SymbolicSize) and len(v.terms) > 1 else v for v in (x, y))
        text = OPERATIONS[name][1].format(*pair)
        new.text = text if len(text) < 200 else f"{text[:200]}...)"
        return _operations.setdefault(key, new)

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return Operation, (self.name, self.x, self.y)


Atom = str | Operation  # a name of a size, or an operation
Term = tuple[Atom, ...]  # the factors of a product
_operations: WeakValueDictionary[Any, Operation] = WeakValueDictionary()


class UndecidedSize(ShapeError):
    """A decision depends on a size that only calls know."""


_assume_large = ContextVar("large", default=False)  # whether comparisons assume large sizes


@contextmanager
def assuming_large() -> Iterator[None]:
    """Decide comparisons as for large sizes: only for checks that are repeated at the call."""
    token = _assume_large.set(True)
    try:
        yield
    finally:
        _assume_large.reset(token)


if TYPE_CHECKING:  # functions that take an int take a size
    _Integer = int
else:
    _Integer = object


class SymbolicSize(_Integer):
    """A polynomial of named sizes with at least one name.

    Two sizes are equal if they are equal for large values: the size of `x[:5]` equals 5, although a
    call may pass an x of 3 rows.  The call infers shapes again, and raises an error if the equality
    does not hold; PyTorch's hints work likewise.  Comparisons such as `<` are decided if the answer
    is the same for all values in SAMPLE_SIZES, and raise UndecidedSize otherwise.
    """

    __slots__ = ("_large_values", "terms")

    if TYPE_CHECKING:

        def __new__(cls, terms: Mapping[Term, float]) -> SymbolicSize: ...

    def __init__(self, terms: Mapping[Term, float]) -> None:
        self.terms = terms
        self._large_values: dict[int, Any] = {}

    def large_value(self, sample: int) -> Any:
        """Return the value for a sample of large sizes; None if it is undefined."""
        if sample not in self._large_values:
            self._large_values[sample] = None
            with suppress(ShapeError):  # of a division by 0, which is an error of the call
                sizes = {n: _large_value(n, sample) for n in self.names}
                self._large_values[sample] = self.at(sizes)
        return self._large_values[sample]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SymbolicSize):
            return all(self.large_value(i) == other for i in range(LARGE_SAMPLES))
        large = (self.large_value(i) == other.large_value(i) for i in range(LARGE_SAMPLES))
        return self.terms == other.terms or all(large)

    def __hash__(self) -> int:
        return hash(self.large_value(0))

    def __add__(self, other: Any) -> Any:
        if (terms := _terms(other)) is None:
            return NotImplemented
        all_terms = {**self.terms, **terms}
        return _polynomial({t: self.terms.get(t, 0) + terms.get(t, 0) for t in all_terms})

    def __mul__(self, other: Any) -> Any:
        if (terms := _terms(other)) is None:
            return NotImplemented
        total: dict[Term, float] = {}
        for (s, a), (t, b) in itertools.product(self.terms.items(), terms.items()):
            term = tuple(sorted((*s, *t), key=str))
            total[term] = total.get(term, 0) + a * b
        return _polynomial(total)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Any:
        return self * -1

    def __sub__(self, other: Any) -> Any:
        return self + other * -1 if _terms(other) is not None else NotImplemented

    def __rsub__(self, other: Any) -> Any:
        return self * -1 + other

    def __floordiv__(self, other: Any) -> Any:
        return _quotient(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _quotient(other, self)

    def __truediv__(self, other: Any) -> Any:
        return operation("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return operation("/", other, self)

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other

    def __rmod__(self, other: Any) -> Any:
        return other - other // self * self

    def __pow__(self, other: Any, modulo: Any = None) -> Any:
        return operation("**", self, other)

    def __lt__(self, other: Any) -> bool:
        return _is_positive(other - self, self, other)

    def __gt__(self, other: Any) -> bool:
        return _is_positive(self - other, self, other)

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        """Return whether this may be above 0 for large values; 0 is checked at the call again."""
        return any((self.large_value(i) or 0) > 0 for i in range(LARGE_SAMPLES))

    def __index__(self, dtype: Any = None, copy: Any = None) -> NoReturn:
        raise UndecidedSize(
            f"the size {self} is known only when the function is called, and a number is needed "
            "here; ops.zeros(x.shape), ops.sqrt(x.shape[0]) and the like take sizes, else give the "
            "input's shape in numbers"
        )

    __int__ = __trunc__ = __float__ = __array__ = __index__

    def __str__(self) -> str:
        # Added terms come first, then subtracted terms, then the number.
        terms = sorted(self.terms.items(), key=lambda item: (not item[0], item[1] < 0))
        text = ""
        for atoms, n in terms:
            number = [f"{abs(n):g}"] if abs(n) != 1 or not atoms else []
            text += f" {'-' if n < 0 else '+'} {'*'.join([*number, *map(str, atoms)])}"
        return text.removeprefix(" + ") if text.startswith(" + ") else f"-{text[3:]}"

    __repr__ = __str__

    @property
    def multiple(self) -> tuple[str, int] | None:
        """The name and the factor of a size such as 32*h; None for any other size."""
        match [*self.terms.items()]:
            case [((str(name),), int(times))] if times > 0:
                return name, times
        return None

    @property
    def names(self) -> frozenset[str]:
        atoms = (atom for term in self.terms for atom in term)
        return frozenset().union(*({a} if isinstance(a, str) else a.names for a in atoms))

    @property
    def is_integer(self) -> bool:
        """Whether this is an integer for all sizes."""
        atoms = (atom for term in self.terms for atom in term)
        integral = all(isinstance(factor, int) for factor in self.terms.values())
        return integral and all(isinstance(atom, str) or atom.is_integer for atom in atoms)

    def at(self, sizes: Mapping[str, int]) -> Any:
        """Return the value for these sizes; ShapeError if it is undefined."""
        values = sizes if isinstance(sizes, Sizes) else Sizes(sizes)
        try:
            terms = self.terms.items()
            number = sum(n * math.prod(values[atom] for atom in term) for term, n in terms)
        except ArithmeticError as error:
            raise ShapeError(f"{self} has no value {self.where(sizes)}: {error}") from None
        if not (isinstance(number, int | float) and abs(number) < math.inf):
            raise ShapeError(f"{self} is not a finite number {self.where(sizes)}")
        return number

    def where(self, sizes: Mapping[str, int]) -> str:
        """Return the values of the names in this size, in words."""
        return "where " + ", ".join(f"{name} is {sizes[name]}" for name in sorted(self.names))


def symbol(name: str) -> SymbolicSize:
    """Return the size called `name`."""
    return SymbolicSize({(name,): 1})


def positive_part(x: int) -> int:
    """Return max(x, 0)."""
    lowest, highest = _sampled_bounds(x)
    if lowest >= 0 or highest <= 0:
        return x if lowest >= 0 else 0
    return operation("max", x, 0)


def ceil_div(x: Any, y: Any) -> Any:
    """Return x / y rounded up to an integer, also of floats; y is above 0."""
    if is_integer(x) and is_integer(y):
        return -(-x // y)
    return operation("ceil", x, y) if is_symbolic((x, y)) else math.ceil(x / y)


def is_symbolic(shape: Iterable[Any]) -> bool:
    """Return whether a shape has a symbolic size."""
    return any(isinstance(n, SymbolicSize) for n in shape)


def same_shape(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two shapes are equal in every call, even if a slice is shortened."""
    return tuple(map(_identity, shape)) == tuple(map(_identity, other))


def _terms(value: Any) -> Mapping[Term, float] | None:
    if isinstance(value, SymbolicSize):
        return value.terms
    return {(): value} if isinstance(value, int | float) else None


def operation(name: str, x: Any, y: Any) -> Any:
    """Return one of OPERATIONS, applied to two sizes or numbers, as a size."""
    if _terms(x) is None or _terms(y) is None:
        return NotImplemented
    return SymbolicSize({(Operation(name, x, y),): 1})


def _identity(x: Any) -> Any:
    """Return a key that two sizes share only if they are equal for all values, sliced or not."""
    return frozenset(x.terms.items()) if isinstance(x, SymbolicSize) else x


def _polynomial(terms: Mapping[Term, float]) -> Any:
    """Return a polynomial, or a number if no size is left in it."""
    nonzero = {term: factor for term, factor in terms.items() if factor}
    return SymbolicSize(nonzero) if any(nonzero) else nonzero.get((), 0)


def _quotient(x: Any, y: Any) -> Any:
    """Return x // y, with terms of x that y divides taken out: (2 * n + 1) // 2 is n."""
    numerator, denominator = _terms(x), _terms(y)
    if numerator is None or denominator is None:
        return NotImplemented
    if numerator == denominator or not any(numerator.values()):
        return int(numerator == denominator)
    ((factors, number), *other_terms) = denominator.items()
    if other_terms or not (number and is_integer(x) and is_integer(y)):
        return operation("//", x, y)
    quotient: dict[Term, float] = {}
    remainder: dict[Term, float] = {}
    for term, factor in numerator.items():
        if (divided := _divided_term(term, factors)) is None:
            remainder[term] = factor
        else:
            quotient[divided], remainder[term] = divmod(factor, number)
    if not any(quotient.values()):
        return operation("//", x, y)
    return _polynomial(quotient) + (_polynomial(remainder) // y if any(remainder.values()) else 0)


def is_integer(x: Any) -> bool:
    """Return whether a size or a number is an integer, in every call."""
    return x.is_integer if isinstance(x, SymbolicSize) else isinstance(x, int)


def _divided_term(term: Term, factors: Term) -> Term | None:
    """Return the product `term` without some of its factors; None if it lacks one of them."""
    quotient = list(term)
    for factor in factors:
        if factor not in quotient:
            return None
        quotient.remove(factor)
    return tuple(quotient)


def _is_positive(difference: Any, x: Any, y: Any) -> bool:
    """Return whether a difference of x and y is above 0; UndecidedSize if that depends on sizes."""
    lowest, highest = _sampled_bounds(difference)
    if lowest > 0 or highest <= 0:
        return lowest > 0
    if _assume_large.get():
        return bool(difference.at(dict.fromkeys(difference.names, LARGE_SIZE)) > 0)
    raise UndecidedSize(
        f"how {x} compares with {y} is known only when the function is called; give the input's "
        "shape in numbers"
    )


def _sampled_bounds(value: Any) -> tuple[float, float]:
    """Return the lowest and the highest number of `value` for the sizes in SAMPLE_SIZES.

    A call infers all shapes again, so a size beyond these bounds raises an error there.
    """
    if not isinstance(value, SymbolicSize):
        return value, value
    samples = SAMPLE_SIZES if len(value.names) <= 2 else (1, LARGE_SIZE)
    numbers = []
    for sizes in itertools.islice(itertools.product(samples, repeat=len(value.names)), 128):
        with suppress(ShapeError):  # of a division by 0, which is an error of the call
            numbers.append(value.at(dict(zip(sorted(value.names), sizes, strict=True))))
    return min(numbers, default=-math.inf), max(numbers, default=math.inf)


class Sizes(dict[Any, Any]):
    """The values of named sizes, and of the operations that were computed with them."""

    def __missing__(self, atom: Any) -> Any:
        if isinstance(atom, str):
            raise KeyError(atom)
        x, y = (v.at(self) if isinstance(v, SymbolicSize) else v for v in (atom.x, atom.y))
        self[atom] = OPERATIONS[atom.name][0](x, y)
        return self[atom]


@functools.cache
def _large_value(name: str, sample: int) -> int:
    """Return a random size for a name, the same in every process; of two samples one is odd."""
    return LARGE_SIZE + random.Random(f"{name} {sample // 2}").getrandbits(32) + sample % 2


# By name, the function of an operation, and its text.
OPERATIONS: dict[str, tuple[Callable[[Any, Any], Any], str]] = {
    "//": (operator.floordiv, "({} // {})"),
    "/": (operator.truediv, "({} / {})"),
    "**": (operator.pow, "({} ** {})"),
    "max": (max, "max({}, {})"),
    "ceil": (ceil_div, "ceil({} / {})"),
}
