"""Symbolic sizes: those that are known only when a function is called, and arithmetic with them.

An input of shape (None, 784) has a symbolic size.  Shape rules, gradients and layers compute with
it as they do with an integer: a size is a polynomial of named sizes, each at least 1.  When a
function is called, `graph.with_sizes` substitutes integers for the names, infers every shape again,
and the graph is one like all others.  `jax.export` and `torch.export` do the same.

Comparisons are decided by hints, as in PyTorch: by the numbers that sizes have for some values of
the names, large ones where equality is asked for.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from minigraph.errors import ShapeError

LARGEST = 1 << 62  # of a size and an offset that a call gives
BITS = 1100  # of an integer: more than the largest float has
# Programs write other numbers, arrays have rarely more rows, and `x[-100_000_000:]` is all of one.
LARGE = 50_000_017
TRIED = (*range(1, 9), 31, 100, LARGE)  # sizes for which comparisons are decided
MOST_TRIED = 128  # combinations of such sizes
SAMPLES = 12  # large values of each name, for which sizes are compared


class Operation:
    """An operation on two sizes or numbers whose result is no polynomial, such as a quotient.

    Equal operations are one object while they are used: sizes that are sliced again and again share
    most of their operations.

    text  its text in messages, cut where it is long
    """

    __slots__ = (
        "__weakref__",
        "_hash",
        "_key",
        "is_whole",
        "name",
        "names",
        "text",
        "x",
        "y",
    )

    def __init__(self, name: str, x: Any, y: Any, key: Any) -> None:
        self.name, self.x, self.y, self._key, self._hash = name, x, y, key, hash(key)
        self.names = frozenset(n for v in (x, y) if isinstance(v, SymbolicSize) for n in v.names)
        self.is_whole = name == "ceil" or (name != "/" and is_whole(x) and is_whole(y))
        if name == "**":
            self.is_whole = self.is_whole and _extremes(y)[0] >= 0
        text = _operation_text(name, x, y)
        self.text = text if len(text) < 200 else f"{text[:200]}...)"

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Operation) and self._key == other._key)

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[Any, ...]:
        return _operation, (self.name, self.x, self.y)


Atom = str | Operation  # the name of a size, or what is no polynomial
Term = tuple[Atom, ...]  # the factors of a product
_operations: dict[Any, Operation] = {}
MANY = 10_000  # operations that are remembered


class UndecidedSize(ShapeError):
    """Raised where a decision depends on a size that is not known yet."""


_all_large = ContextVar("large", default=False)  # whether all sizes count as large in comparisons


@contextmanager
def assuming_large() -> Iterator[None]:
    """Decide comparisons as for large sizes.

    Only for checks that are repeated at the call.
    """
    token = _all_large.set(True)
    try:
        yield
    finally:
        _all_large.reset(token)


if TYPE_CHECKING:  # to the type checker a size is an integer: what takes one takes the other
    _Integer = int
else:
    _Integer = object


class SymbolicSize(_Integer):
    """A polynomial of named sizes that has at least one name in it.

    Two sizes are equal if they are equal for large values, for which no slice is cut: the size of
    `x[:5]` equals 5, though a call may give an x of 3 rows.  Shapes are inferred again at the call,
    which is an error if the equality does not hold then.  `<` and the like are decided where the
    answer is the same for all values in TRIED, and raise UndecidedSize elsewhere.
    """

    __slots__ = ("_large", "terms")

    if TYPE_CHECKING:

        def __new__(cls, terms: Mapping[Term, float]) -> SymbolicSize: ...

    def __init__(self, terms: Mapping[Term, float]) -> None:
        self.terms = terms
        self._large: dict[int, Any] = {}

    def large(self, sample: int) -> Any:
        """Return the number that this is for a sample of large sizes; None if there is none."""
        if sample not in self._large:
            self._large[sample] = None
            with suppress(ShapeError):  # of a division by 0, which is an error of the call
                self._large[sample] = self.at(_LargeSizes(sample))
        return self._large[sample]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, SymbolicSize):
            return all(self.large(i) == other for i in range(SAMPLES))
        same = self.terms == other.terms
        return same or all(self.large(i) == other.large(i) for i in range(SAMPLES))

    def __hash__(self) -> int:
        return hash(self.large(0))

    def __add__(self, other: Any) -> Any:
        if (terms := _terms(other)) is None:
            return NotImplemented
        return _polynomial(
            {t: self.terms.get(t, 0) + terms.get(t, 0) for t in {**self.terms, **terms}}
        )

    def __mul__(self, other: Any) -> Any:
        if (terms := _terms(other)) is None:
            return NotImplemented
        total: dict[Term, float] = {}
        for (s, a), (t, b) in itertools.product(self.terms.items(), terms.items()):
            term = tuple(sorted((*s, *t), key=_order))
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
        return _quotient("//", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _quotient("//", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _quotient("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _quotient("/", other, self)

    def __mod__(self, other: Any) -> Any:
        return self - self // other * other

    def __rmod__(self, other: Any) -> Any:
        return other - other // self * self

    def __pow__(self, other: Any, modulo: Any = None) -> Any:
        if isinstance(other, int) and 0 < other < 10:
            return functools.reduce(operator.mul, [self] * other)
        return _atom("**", self, other)

    def __rpow__(self, other: Any, modulo: Any = None) -> Any:
        return _atom("**", other, self)

    def __lt__(self, other: Any) -> bool:
        return _positive(other - self, self, other)

    def __gt__(self, other: Any) -> bool:
        return _positive(self - other, self, other)

    def __le__(self, other: Any) -> bool:
        return not self > other

    def __ge__(self, other: Any) -> bool:
        return not self < other

    def __bool__(self) -> bool:
        """Return whether this size may be above 0 for large values, where no slice is cut.

        No caller relies on it for a size of 0: `infer`, or a function of sizes, checks that at the
        call.
        """
        return any((self.large(i) or 0) > 0 for i in range(SAMPLES))

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
        text = "".join(f" {'-' if n < 0 else '+'} {_term_text(term, abs(n))}" for term, n in terms)
        return text.removeprefix(" + ") if text.startswith(" + ") else f"-{text[3:]}"

    __repr__ = __str__

    @property
    def brief(self) -> str:
        """The text of this size in an error: short, also if it is computed in many steps."""
        text = str(self)
        return text if len(text) <= 40 else f"a size computed of {', '.join(sorted(self.names))}"

    @property
    def multiple(self) -> tuple[str, int] | None:
        """The name and the factor of a size such as 32*h; None for any other size."""
        match [*self.terms.items()]:
            case [((str(name),), int(times))] if times > 0:
                return name, times
        return None

    @property
    def names(self) -> frozenset[str]:
        """The names of the sizes that this is computed from."""
        atoms = (atom for term in self.terms for atom in term)
        return frozenset().union(*({a} if isinstance(a, str) else a.names for a in atoms))

    @property
    def operations(self) -> set[str]:
        """The names of the operations in this size."""
        return {a.name for term in self.terms for a in term if isinstance(a, Operation)}

    @property
    def is_whole(self) -> bool:
        """Whether this is an integer for all sizes."""
        return all(map(_is_integral, self.terms.items()))

    def at(self, sizes: Mapping[str, int]) -> Any:
        """Return the number that this is for these sizes; ShapeError if there is none."""
        values = sizes if isinstance(sizes, Sizes) else Sizes(sizes)
        try:
            number = sum(
                factor * math.prod(values[atom] for atom in term)
                for term, factor in self.terms.items()
            )
        except ArithmeticError as error:
            raise ShapeError(f"{self.brief} has no value {self.where(sizes)}: {error}") from None
        finite = isinstance(number, int | float) and abs(number) < math.inf
        if type(values) is Sizes and not finite:
            raise ShapeError(f"{self.brief} is no finite number {self.where(sizes)}")
        return number

    def integer_at(self, sizes: Mapping[str, int]) -> int:
        """Return the integer that this is for these sizes; ShapeError if a size is none such."""
        number = self.at(sizes)
        if type(number) is int and abs(number) <= LARGEST:
            return number
        wanted = f"a size is an integer up to {LARGEST}"
        raise ShapeError(f"{self.brief} is {number:g} {self.where(sizes)}; {wanted}")

    def where(self, sizes: Mapping[str, int]) -> str:
        """Return the values of the names in this size, in words."""
        return "where " + ", ".join(f"{name} is {sizes[name]}" for name in sorted(self.names))


def symbol(name: str) -> SymbolicSize:
    """Return the size called `name`."""
    return SymbolicSize({(name,): 1})


def positive_part(x: int) -> int:
    """Return x, or 0 where x is below 0."""
    if not isinstance(x, SymbolicSize):
        return max(x, 0)
    lowest, highest = _extremes(x)
    if lowest >= 0 or highest <= 0:
        return x if lowest >= 0 else 0
    return _atom("max", x, 0)


def quotient_above(x: Any, y: Any) -> Any:
    """Return x / y rounded up to an integer, also of floats; y is above 0."""
    if is_whole(x) and is_whole(y):
        return -(-x // y)
    return _atom("ceil", x, y) if is_symbolic((x, y)) else math.ceil(x / y)


def is_symbolic(shape: Iterable[Any]) -> bool:
    """Return whether a size of a shape is not known."""
    return any(isinstance(n, SymbolicSize) for n in shape)


def same_shape(shape: Sequence[int], other: Sequence[int]) -> bool:
    """Return whether two shapes are the same in every call, also where a slice is cut."""
    return tuple(map(_identity, shape)) == tuple(map(_identity, other))


def substitute(
    value: Any,
    sizes: Mapping[str, int],
    number: Callable[[SymbolicSize, Mapping[str, int]], Any] = SymbolicSize.at,
) -> Any:
    """Return a field of an op (a size, or a tuple or record with sizes) with numbers for its sizes.

    number  computes the number of a size
    """
    if isinstance(value, SymbolicSize):
        return number(value, sizes)
    if type(value) is tuple:
        made = tuple(substitute(each, sizes, number) for each in value)
        return value if all(map(operator.is_, made, value)) else made
    if is_dataclass(value) and not isinstance(value, type):
        given = {f.name: getattr(value, f.name) for f in fields(value) if f.init}
        new = {name: substitute(each, sizes, number) for name, each in given.items()}
        changed = {name: each for name, each in new.items() if each is not given[name]}
        return replace(value, **changed) if changed else value
    return value


def _terms(value: Any) -> Mapping[Term, float] | None:
    if isinstance(value, SymbolicSize):
        return value.terms
    return {(): value} if isinstance(value, int | float) else None


def _operation(name: str, x: Any, y: Any) -> Operation:
    """Return the operation: one object for equal operands, as long as the table holds it."""
    key = name, _identity(x), _identity(y)
    known = _operations.get(key)
    if known is None:
        if len(_operations) > MANY:
            _operations.clear()
        known = _operations.setdefault(key, Operation(name, x, y, key))
    return known


def _atom(operation: str, x: Any, y: Any) -> Any:
    """Return the size that consists of an operation."""
    return SymbolicSize({(_operation(operation, x, y),): 1})


def _identity(x: Any) -> Any:
    """Return a key that two sizes share only if they are equal for all values, sliced or not."""
    return frozenset(x.terms.items()) if isinstance(x, SymbolicSize) else x


def _order(atom: Atom) -> tuple[bool, str]:
    return isinstance(atom, Operation), str(atom)


def _polynomial(terms: Mapping[Term, float]) -> Any:
    """Return a polynomial, or a number if no size is left in it."""
    left = {term: factor for term, factor in terms.items() if factor}
    return SymbolicSize(left) if any(left) else left.get((), 0)


def _quotient(operation: str, x: Any, y: Any) -> Any:
    """Return x / y or x // y: a polynomial where the division leaves no rest.

    What an integer divides of x is taken out of x // y, so that (2 * n + 1) // 2 is n.
    """
    above, below = _terms(x), _terms(y)
    if above is None or below is None:
        return NotImplemented
    if not any(above.values()):
        return 0
    if operation == "//" and isinstance(y, int) and y > 0 and all(map(_is_integral, above.items())):
        whole = _polynomial({term: factor // y for term, factor in above.items()})
        if (rest := _polynomial({term: factor % y for term, factor in above.items()})) != x:
            return whole + rest // y
    if len(below) == 1:
        ((factors, number),) = below.items()
        quotient: dict[Term, float] = {}
        for term, factor in above.items():
            rest = _without(term, factors)
            if rest is None or not number or factor % number:
                break
            quotient[rest] = factor // number if operation == "//" else float(factor // number)
        else:
            return _polynomial(quotient)
    elif above == below:
        return 1 if operation == "//" else 1.0
    return _atom(operation, x, y)


def _is_integral(item: tuple[Term, float]) -> bool:
    """Return whether a term of a polynomial is an integer for all sizes."""
    term, factor = item
    return isinstance(factor, int) and all(isinstance(a, str) or a.is_whole for a in term)


def is_whole(x: Any) -> bool:
    """Return whether a size or a number is an integer, in every call."""
    return x.is_whole if isinstance(x, SymbolicSize) else isinstance(x, int)


def _without(term: Term, factors: Term) -> Term | None:
    """Return the product `term` without some of its factors; None if it lacks one of them."""
    rest = list(term)
    for factor in factors:
        if factor not in rest:
            return None
        rest.remove(factor)
    return tuple(rest)


def _positive(difference: Any, x: Any, y: Any) -> bool:
    """Return whether a difference of x and y is above 0; UndecidedSize if that depends on sizes."""
    if not isinstance(difference, SymbolicSize):
        return bool(difference > 0)
    lowest, highest = _extremes(difference)
    if lowest > 0 or highest <= 0:
        return lowest > 0
    if _all_large.get():
        return bool(difference.at(dict.fromkeys(difference.names, LARGE)) > 0)
    raise UndecidedSize(
        f"how {x} compares with {y} is known only when the function is called; give the input's "
        "shape in numbers"
    )


def _extremes(value: Any) -> tuple[float, float]:
    """Return the least and the largest number that `value` is for the sizes that are tried.

    No proof: what a decision for all sizes overlooks is an error of the call, where every shape is
    inferred again.
    """
    if not isinstance(value, SymbolicSize):
        return value, value
    names = sorted(value.names)
    each = TRIED if len(names) <= 2 else (1, LARGE)
    numbers = []
    for sizes in itertools.islice(itertools.product(each, repeat=len(names)), MOST_TRIED):
        with suppress(ShapeError):  # of a division by 0, which is an error of the call
            numbers.append(value.at(Sizes(zip(names, sizes, strict=True))))
    return min(numbers, default=-math.inf), max(numbers, default=math.inf)


class Sizes(dict[Any, Any]):
    """The values of named sizes, and of the operations that were computed with them."""

    def __missing__(self, atom: Any) -> Any:
        if isinstance(atom, str):
            raise KeyError(atom)
        x, y = (v.at(self) if isinstance(v, SymbolicSize) else v for v in (atom.x, atom.y))
        self[atom] = OPERATIONS[atom.name](x, y)
        return self[atom]


@functools.cache
def _drawn(name: str, sample: int) -> int:
    """Return a random number below 2 ** 32, the same in every process."""
    return int.from_bytes(hashlib.sha256(f"{name} {sample}".encode()).digest()[:4], "big")


class _LargeSizes(Sizes):
    """A large size for each name.

    They are random, so that sizes which leave different rests, or of different names, differ; the
    second one is odd where the first one is even.
    """

    def __init__(self, sample: int) -> None:
        super().__init__()
        self.sample = sample

    def __missing__(self, atom: Any) -> Any:
        if isinstance(atom, str):
            return LARGE + (self.sample == 1) + _drawn(atom, self.sample - (self.sample == 1))
        return super().__missing__(atom)


def _power(x: Any, y: Any) -> Any:
    """Return x ** y, infinity for an integer that no float would hold."""
    whole = isinstance(x, int) and isinstance(y, int)
    return math.inf if whole and (abs(x).bit_length() - 1) * y > BITS else x**y


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "//": operator.floordiv,
    "/": operator.truediv,
    "**": _power,
    "max": max,
    "ceil": quotient_above,
}


def _term_text(term: Term, factor: float) -> str:
    atoms = [*map(str, term)]
    return "*".join([*([f"{factor:g}"] if factor != 1 or not atoms else []), *atoms])


def _operation_text(operation: str, x: Any, y: Any) -> str:
    if operation.isalpha():  # a function
        return f"max({x}, {y})" if operation == "max" else f"ceil({_wrapped(x)} / {_wrapped(y)})"
    return f"({_wrapped(x)} {operation} {_wrapped(y)})"


def _wrapped(x: Any) -> str:
    return f"({x})" if isinstance(x, SymbolicSize) and len(x.terms) > 1 else str(x)
