"""C expressions as Halide's: the same operations in the same order, so that results are the same.

`strict_float` looks through the whole expression below an operation, so every value that has a name
in C becomes a function that Halide inlines: it looks no further, and what is used twice is computed
once.  Both sides of a choice are computed.  What is read has no branches: an `if`, or a loop whose
end depends on a value, is nothing that Halide's kernels have.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

import halide as hl
from pycparser import c_ast
from pycparser.c_parser import CParser

from minigraph.errors import GraphError
from minigraph.jit.halide.values import (
    BUILTIN,
    CONSTANTS,
    DOUBLE,
    FLOAT,
    INT,
    TYPES,
    binary,
    chosen,
    hidden,
    negated,
    number,
    promoted,
    to,
    truth,
)

TYPEDEFS = "".join(f"typedef int {name};" for name in TYPES if name.endswith("_t"))
Scope = dict[str, Any]  # by name: an expression, an int that is known, or a list of them


class Cell(list[Any]):
    """A variable whose address C may take."""


@functools.lru_cache(256)
def _functions(text: str) -> dict[str, c_ast.FuncDef]:
    parsed = CParser().parse(TYPEDEFS + text)
    return {f.decl.name: f for f in parsed.ext if isinstance(f, c_ast.FuncDef)}


@functools.lru_cache(4096)
def _expression(text: str) -> c_ast.Node:
    parsed = CParser().parse(f"{TYPEDEFS}int f() {{ return {text}; }}")
    return parsed.ext[-1].body.block_items[0].expr


def plain(text: str) -> str:
    """Return C text without comments, directives, and words that say how to compile it."""
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    text = re.sub(r"^\s*#.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"\b(MG_INLINE|MG_SHARED|MG_FAST)\b", "static inline", text)


class CText:
    """Evaluates C over the axes `at`, with the functions of `text`."""

    def __init__(self, text: str, at: Sequence[Any]) -> None:
        self.functions = _functions(plain(text))
        self.at = tuple(at)

    def named(self, x: hl.Expr) -> hl.Expr:
        """Return a value as one that is computed once."""
        made = hl.Func()
        made[self.at] = x
        return hl.Expr(made[self.at])

    def value(self, text: str, names: Scope, type_: hl.Type) -> hl.Expr:
        """Return an expression, converted to a type."""
        return to(type_, self._value(_expression(text), names))

    # ------------------------------------------------------------ expressions

    def _value(self, node: c_ast.Node, names: Scope) -> Any:
        match node:
            case c_ast.Constant():
                return _literal(node.value)
            case c_ast.ID():
                found = names[node.name] if node.name in names else CONSTANTS[node.name]
                return found[0] if isinstance(found, Cell) else found
            case c_ast.BinaryOp():
                return binary(
                    node.op, self._value(node.left, names), self._value(node.right, names)
                )
            case c_ast.UnaryOp():
                return self._unary(node, names)
            case c_ast.Cast():
                return to(_type(node.to_type), self._value(node.expr, names))
            case c_ast.TernaryOp():
                condition = truth(self._value(node.cond, names))
                sides = (self._value(side, names) for side in (node.iftrue, node.iffalse))
                return chosen(condition, *sides)
            case c_ast.ArrayRef():
                return self._value(node.name, names)[self._value(node.subscript, names)]
            case c_ast.ExprList():
                return [self._value(each, names) for each in node.exprs][-1]
            case c_ast.FuncCall():
                return self._call(node, names)
        raise GraphError(f"Halide's kernels know no {type(node).__name__} of C")

    def _unary(self, node: c_ast.UnaryOp, names: Scope) -> Any:
        if node.op == "sizeof":
            of = node.expr
            type_ = _type(of) if isinstance(of, c_ast.Typename) else self._value(of, names).type()
            return type_.bits() // 8
        if node.op in "&*":
            found = names[node.expr.name]
            return found[0] if node.op == "*" else found
        x = self._value(node.expr, names)
        match node.op:
            case "-":
                return negated(x)
            case "!":
                return hl.logical_not(truth(x))
            case "~":
                return ~to(promoted(x), x)
        return x

    def _call(self, node: c_ast.FuncCall, names: Scope) -> Any:
        name = node.name.name
        if name == "MG_FMA":
            return self._contracted(node.args.exprs, names)
        own = next((n for n in (f"mg_{name}", name) if n in self.functions), None)
        args = [self._value(each, names) for each in node.args.exprs]
        if own:
            return self._called(self.functions[own], args)
        type_ = DOUBLE if name in BUILTIN else FLOAT
        builtin = BUILTIN[name if type_ == DOUBLE else name.removesuffix("f")]
        return builtin(*(self.named(to(type_, x)) for x in args))

    def _contracted(self, nodes: Sequence[c_ast.Node], names: Scope) -> hl.Expr:
        """x * y + z, rounded once: what Halide makes of it where it may.

        It would take sums of several products apart; of two, the inner one is exact, and hidden.
        """
        *factors, z = nodes
        x, y = (self.named(to(FLOAT, self._value(each, names))) for each in factors)
        if isinstance(z, c_ast.FuncCall) and z.name.name == "MG_FMA":
            a, b, c = (self._value(each, names) for each in z.args.exprs)
            exact = binary("+", binary("*", a, b), c)
            rest = hidden(exact)
        else:
            rest = self._value(z, names)
        return self.named(x * y + self.named(to(FLOAT, rest)))

    def _called(self, function: c_ast.FuncDef, args: Sequence[Any]) -> Any:
        scope: Scope = {}
        for parameter, x in zip(function.decl.type.args.params, args, strict=True):
            pointer = isinstance(parameter.type, c_ast.PtrDecl)
            scope[parameter.name] = x if pointer else self.named(to(_type(parameter), x))
        result = self._run(function.body.block_items, scope)
        of = _type(function.decl.type)
        return result if result is None else self.named(to(of, result))

    # ------------------------------------------------------------ statements

    def _run(self, statements: Sequence[c_ast.Node], scope: Scope) -> Any:
        for each in statements:
            if isinstance(each, c_ast.Return):
                return self._value(each.expr, scope)
            self._do(each, scope)
        return None

    def _do(self, node: c_ast.Node, scope: Scope) -> None:
        match node:
            case c_ast.DeclList():
                for each in node.decls:
                    self._do(each, scope)
            case c_ast.Decl():
                scope[node.name] = self._declared(node, scope)
            case c_ast.For():
                self._do(node.init, scope)
                while self._value(node.cond, scope):
                    self._run([*_block(node.stmt), node.next], scope)
            case c_ast.Assignment():
                new = self._value(node.rvalue, scope)
                if node.op != "=":
                    new = binary(node.op[:-1], self._value(node.lvalue, scope), new)
                self._assign(node.lvalue, new, scope)
            case c_ast.UnaryOp(op="p++"):
                self._assign(node.expr, binary("+", self._value(node.expr, scope), 1), scope)
            case c_ast.FuncCall() if node.name.name == "memcpy":
                target, source = (_pointed(each) for each in node.args.exprs[:2])
                held = self._value(target, scope)
                bits = hl.reinterpret(held.type(), self._value(source, scope))
                self._assign(target, bits, scope)
            case c_ast.FuncCall():
                self._call(node, scope)
            case c_ast.Cast() | c_ast.Pragma() | c_ast.EmptyStatement():
                pass  # (void)x
            case _:
                raise GraphError(f"Halide's kernels know no {type(node).__name__} of C")

    def _declared(self, node: c_ast.Decl, scope: Scope) -> Any:
        type_ = _type(node)
        if isinstance(node.type, c_ast.ArrayDecl):
            return [number(type_, 0)] * self._value(node.type.dim, scope)
        if node.init is None:
            return Cell([number(type_, 0)])
        value = self._value(node.init, scope)
        return value if isinstance(value, int) and type_ == INT else self.named(to(type_, value))

    def _assign(self, target: c_ast.Node, value: Any, scope: Scope) -> None:
        old = self._value(target, scope)
        if not (isinstance(old, int) and isinstance(value, int)):
            value = self.named(to(INT if isinstance(old, int) else old.type(), value))
        if isinstance(target, c_ast.ArrayRef):
            scope[target.name.name][self._value(target.subscript, scope)] = value
            return
        name = target.expr.name if isinstance(target, c_ast.UnaryOp) else target.name
        if isinstance(scope[name], list):
            scope[name][0] = value
        else:
            scope[name] = value


def _pointed(node: c_ast.Node) -> c_ast.Node:
    """What an argument of memcpy points to: x for `&x`, and for a pointer `x`."""
    return node.expr if isinstance(node, c_ast.UnaryOp) else node


def _block(node: c_ast.Node) -> Sequence[c_ast.Node]:
    return (node.block_items or []) if isinstance(node, c_ast.Compound) else [node]


def _type(node: c_ast.Node) -> hl.Type:
    while not isinstance(node, c_ast.IdentifierType):
        node = node.type
    name = node.names[-1]
    return TYPES.get(name, INT)  # of `void` nothing is made


def _literal(text: str) -> Any:
    digits = text.lower()
    hexadecimal = digits.startswith("0x")
    if "." in digits or ("p" in digits if hexadecimal else "e" in digits):
        single = digits.endswith("f")
        digits = digits.removesuffix("f")
        return number(
            FLOAT if single else DOUBLE, float.fromhex(digits) if hexadecimal else float(digits)
        )
    value = int(digits.rstrip("ul"), 0)
    if "u" in digits:
        return number(hl.UInt(32 if value < 1 << 32 else 64), value)
    return value if value < 1 << 31 else number(hl.Int(64), value)
