"""The mutants of a file: its text with a change in one place, such as < instead of <=."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent

COMPARISONS = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
ARITHMETIC = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
}
NAMES = {"min": "max", "max": "min", "any": "all", "all": "any", "sorted": "list"}
# Constants that a function may return instead of its result, by the type of the result.
RESULTS = {
    "bool": ("True", "False"),
    "str": ("''",),
    "int": ("0",),
    "float": ("0.0",),
    "None": ("None",),
    "list": ("[]",),
    "tuple": ("()",),
    "dict": ("{}",),
    "set": ("set()",),
    "Iterator": ("iter(())",),
}
# Replacements in the text of kernels.
TEXT = {
    r"<=": "<",
    r"(?<![<\-])<(?![<=])": "<=",
    r"==": "!=",
    r"&&": "||",
    r"\+=": "-=",
    r" \+ ": " - ",
    r" - ": " + ",
    r" \* ": " + ",
    r" / ": " * ",
    r" % ": " / ",
    r"(?<![\w.])0(?![\w.])": "1",
    r"(?<![\w.])1(?![\w.])": "2",
    r"__sync\w+\([^)]*\);": "",
}


@dataclass(frozen=True)
class Mutant:
    """Another text for the characters from `start` to `end` of a file."""

    path: str  # below the root of the repository
    kind: str
    start: int
    end: int
    text: str

    def applied(self) -> str:
        source = (ROOT / self.path).read_text()
        return source[: self.start] + self.text + source[self.end :]

    def diff(self) -> str:
        before = (ROOT / self.path).read_text().splitlines()
        lines = difflib.unified_diff(before, self.applied().splitlines(), lineterm="", n=1)
        return "\n".join([f"{self.path} ({self.kind})", *list(lines)[2:]])


class File:
    """The mutants of a file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.source = (ROOT / path).read_text()
        starts = [0]
        for line in self.source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        self.starts = starts
        self.lines = [line.encode() for line in self.source.splitlines()]

    def offset(self, line: int, column: int) -> int:
        """Return the index of a character; the columns of `ast` count bytes."""
        return self.starts[line - 1] + len(self.lines[line - 1][:column].decode())

    def mutant(self, kind: str, node: ast.AST, text: str) -> Mutant:
        start = self.offset(node.lineno, node.col_offset)
        return Mutant(
            self.path, kind, start, self.offset(node.end_lineno, node.end_col_offset), text
        )

    def mutants(self) -> Iterator[Mutant]:
        tree = ast.parse(self.source)
        yield from self.visit(tree)

    def visit(self, node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, ast.JoinedStr) or (
            isinstance(node, ast.Constant) and isinstance(node.value, str)
        ):
            if self.path.startswith("minigraph/jit/"):
                yield from self.of_text(node)
            return  # positions inside an f-string are wrong before Python 3.12
        yield from self.of(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
                    continue  # a docstring
                if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
                    continue
                if isinstance(child, ast.AST):
                    yield from self.visit(child)

    def of(self, node: ast.AST) -> Iterator[Mutant]:
        """Yield the mutants of a node, without those of its children."""
        match node:
            case ast.Compare(left, ops, comparators):
                for i, op in enumerate(ops):
                    others = [*ops[:i], COMPARISONS[type(op)](), *ops[i + 1 :]]
                    yield self.replaced("comparison", node, ast.Compare(left, others, comparators))
            case ast.BoolOp(op, values):
                other = ast.And() if isinstance(op, ast.Or) else ast.Or()
                yield self.replaced("and, or", node, ast.BoolOp(other, values))
            case ast.UnaryOp(ast.Not(), operand):
                yield self.replaced("not", node, operand)
            case ast.BinOp(left, op, right) if type(op) in ARITHMETIC and not (
                isinstance(left, ast.Constant | ast.JoinedStr) and isinstance(op, ast.Mod)
            ):
                yield self.replaced(
                    "arithmetic", node, ast.BinOp(left, ARITHMETIC[type(op)](), right)
                )
            case ast.Constant(value) if type(value) is int and 0 <= value <= 64:
                yield self.mutant("constant", node, str(value + 1))
            case ast.If(test) | ast.While(test) | ast.IfExp(test):
                yield self.replaced("condition", test, ast.UnaryOp(ast.Not(), test))
            case ast.comprehension(ifs=[test, *_]):
                yield self.mutant("condition", test, "True")
            case ast.Name(id) if id in NAMES:
                yield self.mutant("name", node, NAMES[id])
            case (
                ast.Expr(ast.Call()) | ast.AugAssign() | ast.Continue() | ast.Break() | ast.Raise()
            ):
                yield self.mutant("statement", node, "pass")
            case ast.Assign([ast.Subscript() | ast.Attribute()]):
                yield self.mutant("statement", node, "pass")
            case ast.Expr(ast.YieldFrom() | ast.Yield()):
                yield self.mutant("statement", node, "yield from ()")
            case ast.FunctionDef():
                yield from self.of_function(node)
        if isinstance(node, ast.Call):
            first = [arg for arg in node.args[:2] if not isinstance(arg, ast.Starred)]
            if len(first) == 2 and ast.dump(first[0]) != ast.dump(first[1]):
                swapped = [first[1], first[0], *node.args[2:]]
                yield self.replaced("arguments", node, ast.Call(node.func, swapped, node.keywords))
            for i, keyword in enumerate(node.keywords):
                if keyword.arg:
                    others = [*node.keywords[:i], *node.keywords[i + 1 :]]
                    yield self.replaced("keyword", node, ast.Call(node.func, node.args, others))

    def replaced(self, kind: str, node: ast.AST, other: ast.AST) -> Mutant:
        return self.mutant(kind, node, f"({ast.unparse(ast.fix_missing_locations(other))})")

    def of_function(self, node: ast.FunctionDef) -> Iterator[Mutant]:
        """Yield the function with a body that computes nothing."""
        if any(
            isinstance(d, ast.Name) and d.id in ("abstractmethod", "overload")
            for d in node.decorator_list
        ):
            return
        body = [s for s in node.body if not is_text(s)]
        if not body or isinstance(body[0], ast.Pass):
            return
        returns = ast.unparse(node.returns) if node.returns else ""
        results = list(RESULTS.get(returns.split("[")[0], ()))
        if "| None" in returns:
            results.append("None")
        names = [a.arg for a in node.args.args if a.arg not in ("self", "cls")]
        same = [
            a.arg for a in node.args.args if a.annotation and ast.unparse(a.annotation) == returns
        ]
        results += [name for name in same[:1] if name in names]
        start = self.offset(body[0].lineno, body[0].col_offset)
        end = self.offset(body[-1].end_lineno, body[-1].end_col_offset)
        for result in results:
            text = f"return {result}"
            if any(isinstance(n, ast.Yield | ast.YieldFrom) for n in ast.walk(node)):
                text = "yield from ()"
            if self.source[start:end] != text:
                yield Mutant(self.path, "function", start, end, text)

    def of_text(self, node: ast.JoinedStr | ast.Constant) -> Iterator[Mutant]:
        """Yield the mutants of a string, without those of expressions in braces."""
        start = self.offset(node.lineno, node.col_offset)
        end = self.offset(node.end_lineno, node.end_col_offset)
        text = self.source[start:end]
        if isinstance(node, ast.JoinedStr):
            braces = re.compile(r"(?<!\{)\{(?!\{)(?:[^{}]|\{[^{}]*\})*\}")
            text = braces.sub(lambda match: "\0" * len(match[0]), text)
        for pattern, other in TEXT.items():
            for match in re.finditer(pattern, text):
                yield Mutant(self.path, "text", start + match.start(), start + match.end(), other)


def is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def is_pass(mutant: Mutant) -> bool:
    """Whether a pass is replaced by one that does nothing: these mutants are always tested."""
    return mutant.kind == "function" and mutant.text == "return graph"
