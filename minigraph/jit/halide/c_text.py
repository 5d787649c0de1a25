"""C expressions as Halide's: the same operations in the same order, with the same results.

`strict_float` traverses the whole expression below an operation.  So every named C value becomes a
function that Halide inlines: the traversal ends at the function, and a value that is used twice is
computed once.  Both sides of a choice are computed.  C text with branches, such as an `if` or a
loop whose end depends on a value, is refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from typing import Any

import halide as hl
from pycparser import c_ast
from pycparser.c_parser import CParser

from minigraph.jit.halide.values import (
    BUILTINS,
    CONSTANTS,
    DOUBLE,
    FLOAT,
    INT,
    TYPES,
    UNARY,
    binary,
    constant,
    convert,
    hidden,
    select,
)

TYPEDEFS = "".join(f"typedef int {name};" for name in TYPES if name.endswith("_t"))
# The elements of each array by its name; a variable is an array of one element.
Scope = dict[str, list[Any]]


@functools.lru_cache(256)
def _functions(text: str) -> dict[str, c_ast.FuncDef]:
    """Return the parsed functions of C text by name, without comments, directives, attributes."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\b(MG_INLINE|MG_NOINLINE|MG_CONTRACT)\b", "static inline", text)
    parsed = CParser().parse(TYPEDEFS + text)
    return {f.decl.name: f for f in parsed.ext if isinstance(f, c_ast.FuncDef)}


@functools.lru_cache(4096)
def _expression(text: str) -> c_ast.Node:
    parsed = CParser().parse(f"{TYPEDEFS}int f() {{ return {text}; }}")
    return parsed.ext[-1].body.block_items[0].expr


class CText:
    """Evaluates C over `axes`, with the functions of `text`."""

    def __init__(self, text: str = "", axes: Sequence[Any] = ()) -> None:
        self.functions = _functions(text)
        self.axes = tuple(axes)

    def value(self, text: str, names: Mapping[str, hl.Expr], type_: hl.Type) -> hl.Expr:
        """Return an expression, converted to a type."""
        scope = {name: [x] for name, x in names.items()}
        return convert(type_, self._value(_expression(text), scope))

    def _as_func(self, x: hl.Expr) -> hl.Expr:
        """Return a value through a function of Halide, so that it is computed once."""
        func = hl.Func()
        func[self.axes] = x
        return hl.Expr(func[self.axes])

    def _converted(self, type_: hl.Type, node: c_ast.Node, scope: Scope) -> hl.Expr:
        """Return the value of an expression, converted to a type and computed once."""
        return self._as_func(convert(type_, self._value(node, scope)))

    # ------------------------------------------------------------ expressions

    def _value(self, node: c_ast.Node, scope: Scope) -> Any:
        match node:
            case c_ast.Constant():
                return _literal(node.value)
            case c_ast.ID() if node.name not in scope:
                return CONSTANTS[node.name]
            case c_ast.ID() | c_ast.ArrayRef() | c_ast.UnaryOp(op="*"):
                cells, i = _lvalue(node, scope)
                return cells[i]
            case c_ast.UnaryOp(op="sizeof"):
                operand = node.expr
                is_type = isinstance(operand, c_ast.Typename)
                type_ = _type(operand) if is_type else self._value(operand, scope).type()
                return constant(hl.UInt(64), type_.bits() // 8)
            case c_ast.UnaryOp():
                return UNARY[node.op](self._value(node.expr, scope))
            case c_ast.BinaryOp():
                sides = (self._value(side, scope) for side in (node.left, node.right))
                return binary(node.op, *sides)
            case c_ast.TernaryOp():
                parts = (node.cond, node.iftrue, node.iffalse)
                return select(*(self._value(part, scope) for part in parts))
            case c_ast.Cast():
                return convert(_type(node.to_type), self._value(node.expr, scope))
            case c_ast.ExprList():
                return self._value(node.exprs[-1], scope)
            case c_ast.FuncCall():
                return self._call(node.name.name, node.args.exprs, scope)
        raise NotImplementedError(f"Halide kernels support no C {type(node).__name__}")

    def _call(self, name: str, args: Sequence[c_ast.Node], scope: Scope) -> Any:
        if name == "MG_FMA":
            return self._contracted(args, scope)
        function = self.functions.get(f"mg_{name}") or self.functions.get(name)
        if function:
            return self._inline(function, args, scope)
        type_, builtin = BUILTINS[name]
        return builtin(*(self._converted(type_, x, scope) for x in args))

    def _contracted(self, args: Sequence[c_ast.Node], scope: Scope) -> hl.Expr:
        """Return x * y + z, in the type of x, which Halide contracts, so that it is rounded once.

        Where Halide would reassociate a sum of products, or make y * z + z a product, z is hidden.
        """
        type_ = self._value(args[0], scope).type()
        x, y, z = (self._converted(type_, arg, scope) for arg in args)
        factors = [arg.name for arg in args[:2] if isinstance(arg, c_ast.ID)]
        is_variable = isinstance(args[2], c_ast.ID) and args[2].name not in factors
        if not (is_variable or isinstance(args[2], c_ast.Constant)):
            z = hidden(z)
        return self._as_func(x * y + z)

    def _inline(self, function: c_ast.FuncDef, args: Sequence[c_ast.Node], scope: Scope) -> Any:
        local: Scope = {}
        for parameter, x in zip(function.decl.type.args.params, args, strict=True):
            if isinstance(parameter.type, c_ast.PtrDecl):
                local[parameter.name], _ = _lvalue(x, scope)
            else:
                local[parameter.name] = [self._converted(_type(parameter), x, scope)]
        for statement in function.body.block_items:
            if isinstance(statement, c_ast.Return):
                return self._converted(_type(function.decl), statement.expr, local)
            self._execute(statement, local)
        return None

    # ------------------------------------------------------------ statements

    def _execute(self, node: c_ast.Node, scope: Scope) -> None:
        match node:
            case c_ast.Decl(type=c_ast.ArrayDecl()):
                scope[node.name] = [constant(_type(node), 0)] * int(node.type.dim.value)
            case c_ast.Decl():
                scope[node.name] = [constant(_type(node), 0)]
                if node.init is not None:
                    self._assign(node, self._value(node.init, scope), scope)
            case c_ast.For():  # from 0 on, to a number
                for _ in range(int(node.cond.right.value)):
                    for statement in node.stmt.block_items:
                        self._execute(statement, scope)
            case c_ast.Assignment():
                value = self._value(node.rvalue, scope)
                if node.op != "=":
                    value = binary(node.op[:-1], self._value(node.lvalue, scope), value)
                self._assign(node.lvalue, value, scope)
            case c_ast.FuncCall() if node.name.name == "memcpy":
                (cells, i), (source, j) = (_lvalue(x, scope) for x in node.args.exprs[:2])
                cells[i] = self._as_func(hl.reinterpret(cells[i].type(), source[j]))
            case c_ast.FuncCall():
                self._call(node.name.name, node.args.exprs, scope)
            case c_ast.Pragma() | c_ast.Cast():
                pass  # (void)x
            case _:
                raise NotImplementedError(f"Halide kernels support no C {type(node).__name__}")

    def _assign(self, target: c_ast.Node, value: Any, scope: Scope) -> None:
        cells, i = _lvalue(target, scope)
        cells[i] = self._as_func(convert(cells[i].type(), value))


def _lvalue(node: c_ast.Node, scope: Scope) -> tuple[list[Any], int]:
    """Return the array of a variable, an element or a dereferenced pointer, and the index in it."""
    match node:
        case c_ast.UnaryOp():  # &x and *x
            return _lvalue(node.expr, scope)
        case c_ast.ArrayRef():
            return scope[node.name.name], int(node.subscript.value)
    return scope[node.name], 0


def _type(node: c_ast.Node) -> hl.Type:
    while not isinstance(node, c_ast.IdentifierType):
        node = node.type
    return TYPES.get(node.names[-1], INT)  # no value of type `void` is created


def _literal(text: str) -> hl.Expr:
    digits = text.lower()
    hexadecimal = digits.startswith("0x")
    if "." in digits or ("p" if hexadecimal else "e") in digits:
        type_ = FLOAT if digits.endswith("f") else DOUBLE
        digits = digits.removesuffix("f")
        return constant(type_, float.fromhex(digits) if hexadecimal else float(digits))
    value = int(digits.rstrip("ul"), 0)
    if "u" in digits:
        return constant(hl.UInt(32 if value < 1 << 32 else 64), value)
    return constant(INT if value < 1 << 31 else hl.Int(64), value)
