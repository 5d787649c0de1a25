"""Argument checking: `checked` parses the arguments of a function by its annotations.

`int`, `float`, `bool`, `str` and `Literal[...]` are kinds of arguments, `X | None` is a kind or
None, and `Annotated[X, kind]` names another kind.  Other annotations are not checked.

A function gets parsed arguments: for a `float`, numbers and 0-d arrays of NumPy and torch arrive as
Python's float.  A GraphError names the wrong argument.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
import numbers
import operator
import os
import sys
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, TypeVar, Union, cast

from minigraph.errors import GraphError, ShapeError
from minigraph.symbolic import SymbolicSize, is_symbolic

F = TypeVar("F", bound=Callable[..., Any])
MAX_VALUE_LENGTH = 80  # characters of a value in a message
MAX_INTEGER_BITS = 128  # of an integer, at most: enough for an error about the memory of a size


@dataclass(frozen=True, eq=False)
class Kind:
    """A kind of arguments.

    description      of valid arguments, for errors: "p is None; it takes a number"
    parse            returns the parsed argument; raises ValueError, TypeError or OverflowError for
                     an argument of another kind, or a GraphError with the reason
    error            the class of the error
    exact_types      types whose values need no parsing
    none_is_default  whether None stands for the parameter's default
    """

    description: str
    parse: Callable[[Any], Any]
    error: type[GraphError] = GraphError
    exact_types: frozenset[type] = frozenset()
    none_is_default: bool = False

    def check(self, name: str, value: Any) -> Any:
        """Return `value` parsed; an error for a value of another kind names the argument."""
        try:
            return self.parse(value)
        except GraphError as error:
            raise type(error)(f"{name}: {error}") from None
        except (TypeError, ValueError, OverflowError):
            raise self.error(
                f"{name} is {short_repr(value)}; it takes {self.description}"
            ) from None


def short_repr(value: Any) -> str:
    """Return the `repr` of any value, as one short line."""
    if inspect.ismethod(value):
        return f"the method {value.__name__}, which is not called"
    try:
        text = " ".join(repr(value).split())
    except Exception:  # any class may raise here; and an int may have too many digits
        text = f"<{type(value).__name__}>"
    return shorten(text)


def shorten(text: str, max_length: int = MAX_VALUE_LENGTH) -> str:
    """Return a text, truncated to `max_length` characters."""
    return text if len(text) <= max_length else f"{text[: max_length - 1]}…"


def first_names(names: Sequence[str], count: int = 3) -> str:
    """Return the first `count` names in one line, with "..." for the rest."""
    return ", ".join(names[:count]) + (", ..." if len(names) > count else "")


# ---------------------------------------------------------------- kinds


def _python_scalar(value: Any) -> Any:
    """Return NumPy's and torch's numbers, and arrays without axes, as Python's."""
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        return value.item()
    return value


def _number(value: Any) -> float:
    if type(value) is int:
        return float(value)
    value = _python_scalar(value)
    if not isinstance(value, numbers.Real):
        raise TypeError
    return float(value)


def _integer(value: Any) -> int:
    number = value if type(value) is int else operator.index(_python_scalar(value))
    if number.bit_length() > MAX_INTEGER_BITS:
        raise OverflowError
    return number


def _sections(value: Any) -> int | tuple[int, ...]:
    """Return a number of sections, or the indices at which to split, which may be symbolic."""
    if isinstance(value, tuple | list) and is_symbolic(value):
        return tuple(size(n) if isinstance(n, SymbolicSize) else _integer(n) for n in value)
    return one_or_several(value)


def one_or_several(value: Any) -> int | tuple[int, ...]:
    """Return an integer, or the integers of a sequence or an array as a tuple."""
    if type(value) not in (tuple, list):  # tuples and lists skip the slower checks
        several = isinstance(value, Sequence) or getattr(value, "ndim", 0) == 1
        if not several or isinstance(value, str | bytes):
            return _integer(value)
    return tuple(map(_integer, value))


def integers(value: Any) -> tuple[int, ...]:
    """Return an integer, or the integers of a sequence or an array, as a tuple."""
    parsed = one_or_several(value)
    return (parsed,) if isinstance(parsed, int) else parsed


def size(value: Any, minimum: int = 0) -> int:
    """Return an integer >= `minimum`, or a symbolic size."""
    if isinstance(value, SymbolicSize):
        if not value.is_integer:
            raise ValueError
        return value
    number = _integer(value)
    if number < minimum:
        raise ValueError
    return number


def sizes(value: Any, minimum: int = 0) -> tuple[int, ...]:
    """Return a size or a sequence of sizes as a tuple."""
    if not isinstance(value, tuple | list):
        value = (value,) if isinstance(value, SymbolicSize) else integers(value)
    return tuple(size(n, minimum) for n in value)


def _scalar(value: Any) -> int | float:
    if isinstance(value, SymbolicSize):
        return value
    value = _python_scalar(value)
    return int(value) if isinstance(value, numbers.Integral) else _number(value)


def _flag(value: Any) -> bool:
    value = _python_scalar(value)
    if not isinstance(value, int) or value not in (0, 1):
        raise TypeError
    return bool(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # raises for lone surrogates, which no file and no report can hold
    return value


def with_predicate(
    predicate: Callable[[Any], bool], parse: Callable[[Any], Any]
) -> Callable[[Any], Any]:
    """Return a function that parses a value, and raises ValueError if the predicate is false."""

    def parsed(value: Any) -> Any:
        result = parse(value)
        if not predicate(result):
            raise ValueError
        return result

    return parsed


def mapping(value: Any) -> Mapping[Any, Any]:
    """Return a mapping; TypeError for another value."""
    if not isinstance(value, Mapping):
        raise TypeError
    return value


def at_least(minimum: int, error: type[GraphError] = GraphError, most: int | None = None) -> Kind:
    """Return the kind of integers that are not below `minimum`, nor above `most`."""
    interval = f">= {minimum}" if most is None else f"from {minimum} to {most}"
    maximum = math.inf if most is None else most
    parse = with_predicate(lambda n: minimum <= n <= maximum, _integer)
    return Kind(f"an integer {interval}", parse, error)


def number_in(low: float, high: float = math.inf) -> Kind:
    """Return the kind of numbers in [low, high)."""
    parse = with_predicate(lambda x: low <= x < high, _number)
    return Kind(f"a number in [{low:g}, {high:g})", parse)


def one_of(*options: str) -> Kind:
    """Return the kind of these texts."""
    return Kind('"' + '" or "'.join(options) + '"', with_predicate(options.__contains__, _text))


def instance_of(cls: Any, description: str, exact_types: Iterable[type] = ()) -> Kind:
    """Return the kind of instances of a class; instances of `exact_types` are not checked again."""
    parse = with_predicate(lambda value: isinstance(value, cls), lambda value: value)
    return Kind(description, parse, exact_types=frozenset({cls, *exact_types}))


def optional(kind: Kind) -> Kind:
    """Return the kind that is `kind` or None."""

    def parse(value: Any) -> Any:
        return None if value is None else kind.parse(value)

    return Kind(f"{kind.description} or None", parse, kind.error, kind.exact_types | {type(None)})


NUMBER = Kind("a number", _number, exact_types=frozenset({float}))
NOT_NEGATIVE = number_in(0)
KIND_OF_TYPE: dict[Any, Kind] = {
    int: Kind("an integer", _integer),
    float: NUMBER,
    bool: Kind("True or False", _flag, exact_types=frozenset({bool})),
    str: Kind("a string", _text),
}

Axis = Annotated[int, Kind("an integer", _integer, ShapeError, exact_types=frozenset({int}))]
Integers = Annotated[Any, Kind("an integer or a sequence of them", integers, ShapeError)]
Sections = Annotated[Any, Kind("an integer or a sequence of them", _sections, ShapeError)]
Scalar = Annotated[float, Kind("a number", _scalar, exact_types=frozenset({int, float}))]
NotNegative = Annotated[float, NOT_NEGATIVE]
Probability = Annotated[
    float, Kind("a probability", with_predicate(lambda p: 0 <= p <= 1, _number))
]
Name = Annotated[str, Kind("a non-empty string", lambda value: _text(value or None))]
PATH = Kind("a path", with_predicate(lambda path: isinstance(path, str), os.fspath))
FilePath = Annotated[str | os.PathLike[str], PATH]
Size = Annotated[int, Kind("an integer >= 0", size, ShapeError)]
Offset = Annotated[int, Kind("an integer", lambda value: size(value, -sys.maxsize))]
Seed = Annotated[int, at_least(0)]
Count = Annotated[int, at_least(1, ShapeError)]
# More layers would take minutes and all memory before an error.
Layers = Annotated[int, at_least(1, ShapeError, most=1000)]
CountOrSize = Annotated[int, Kind("an integer >= 1", lambda value: size(value, 1), ShapeError)]


@functools.cache
def kind_of(annotation: Any) -> Kind | None:
    """Return the kind that an annotation stands for, None if it is not checked."""
    if annotation in KIND_OF_TYPE:
        return KIND_OF_TYPE[annotation]
    origin, type_args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        for part in type_args:
            if isinstance(part, Kind):
                return part
    if origin is Literal:
        return one_of(*type_args)
    if origin in (Union, types.UnionType):
        kinds = [kind_of(part) for part in type_args if part is not types.NoneType]
        if len(kinds) == 1 < len(type_args) and kinds[0]:
            return optional(kinds[0])
    return None


# ---------------------------------------------------------------- functions


# torch's names of arguments, with those of this package.
TORCH_ARGUMENTS = {"dim": "axis", "keepdim": "keepdims", "input": "x", "device": "options"}


class Signature:
    """The kinds of a function's parameters, whose defaults it parses once.

    It reads the function's annotations at the first call: most functions are never called.
    """

    def __init__(self, fn: Any) -> None:
        self._fn = fn

    @functools.cached_property
    def kinds(self) -> dict[str, Kind | None]:
        """The kinds of the parameters, by name; their defaults are parsed now."""
        fn = self._fn
        parameters = inspect.signature(fn).parameters
        self.kinds = {name: _kind(p, fn.__globals__) for name, p in parameters.items()}
        self._takes_any_name = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        ordered = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        self._names = [name for name, p in parameters.items() if p.kind in ordered]
        if fn.__defaults__:
            named = zip(self._names[-len(fn.__defaults__) :], fn.__defaults__, strict=True)
            fn.__defaults__ = tuple(self._default(name, value) for name, value in named)
        if fn.__kwdefaults__:
            named = fn.__kwdefaults__.items()
            fn.__kwdefaults__ = {name: self._default(name, value) for name, value in named}
        return self.kinds

    def _default(self, name: str, value: Any) -> Any:
        return value if value is None else self._named(name, value)

    def parse(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Parsed:
        """Return the parsed arguments.  Python itself checks their number and names."""
        kinds = self.kinds  # now, because it parses the defaults that the call may use
        parsed = [self._named(*each) for each in zip(self._names, args, strict=False)]
        if kwargs:
            if not (self._takes_any_name or kwargs.keys() <= kinds.keys()):
                raise self._unexpected(next(name for name in kwargs if name not in kinds))
            kwargs = {name: self._named(name, value) for name, value in kwargs.items()}
        return (*parsed, *args[len(parsed) :]), kwargs

    def _unexpected(self, name: str) -> TypeError:
        """Return Python's error for an unknown argument, with a similar one, else with all."""
        replacement = TORCH_ARGUMENTS.get(name, "")
        if replacement not in self.kinds:
            nearest = difflib.get_close_matches(name, self.kinds, n=1)
            option = f'options={{"{name:.99}": ...}}' if "options" in self.kinds else ""
            replacement = nearest[0] if nearest else option
        text = f"{self._fn.__qualname__}() got an unexpected keyword argument {name!r:.99}"
        if name == "maximize":
            replacement = "minimize(-loss)"
        known = ", ".join(name for name in self.kinds if name != "self")
        return TypeError(f"{text}; {f'use {replacement}' if replacement else f'it takes {known}'}")

    def _named(self, name: str, value: Any) -> Any:
        kind = self.kinds.get(name)
        return value if kind is None or type(value) in kind.exact_types else kind.check(name, value)


def _kind(parameter: inspect.Parameter, names: dict[str, Any]) -> Kind | None:
    annotation, default = parameter.annotation, parameter.default
    kind = kind_of(eval(annotation, names) if isinstance(annotation, str) else annotation)
    if kind is None or not kind.none_is_default or default is parameter.empty:
        return kind
    return replace(kind, parse=lambda value: kind.parse(default if value is None else value))


Parsed = tuple[tuple[Any, ...], Mapping[str, Any]]


def checked(fn: F) -> F:
    """Return `fn`, a function or a class, with its arguments checked against its annotations.

    Errors begin with the name of the function, or of the class.
    """
    if isinstance(fn, type):
        fn.__init__ = _checked(fn.__init__, fn.__qualname__)  # type: ignore[misc]
        return cast(F, fn)
    return _checked(fn, fn.__qualname__.removesuffix(".__init__"))


def _checked(fn: F, name: str) -> F:
    signature = Signature(fn)

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            positional, named = signature.parse(args, kwargs)
        except GraphError as error:
            raise type(error)(f"{name}: {error}") from None
        try:
            return fn(*positional, **named)
        except MemoryError as error:
            raise GraphError(f"{name}: the memory does not suffice ({error})") from error

    return cast(F, call)
