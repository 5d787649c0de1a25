"""An extension of Griffe, which reads the package for mkdocstrings: docstrings as Markdown.

It also finds the functions that `minigraph.ops` makes of classes, as in `exp = Exp.of`, which are
plain attributes to a reader of the source, the arguments of classes that are made of fields, and
docstrings that are made of others.
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import griffe

ANNOTATED = re.compile(r"Annotated\[(\w+), [^\]]*\]")  # in a text; `plain` reads expressions
ENTRY = re.compile(r"(\w[\w, ]*?) {2,}(\S.*)")


class Docstrings(griffe.Extension):  # type: ignore[misc]
    def on_package(self, *, pkg: griffe.Module, loader: griffe.GriffeLoader, **kwargs: Any) -> None:
        """Make functions of attributes that are callable, and Markdown of all docstrings."""
        for module in modules(pkg):
            imported = sys.modules.get(module.path)  # what is not has no public names
            for name, attribute in [*module.attributes.items()]:
                value = getattr(imported, name, None)
                public = not (name.startswith("_") or attribute.is_alias)
                if public and (inspect.isfunction(value) or inspect.ismethod(value)):
                    module.set_member(name, function(name, value, attribute))
            for name, member in module.members.items():
                if member.is_alias or not member.is_class:
                    continue
                value = getattr(imported, name, object)
                if member.docstring is None and value.__doc__:  # of a layer: that of its function
                    member.docstring = griffe.Docstring(
                        inspect.cleandoc(value.__doc__), parent=member
                    )
                written_by_python = vars(value).get("__init__")
                if "__init__" not in member.members and inspect.isfunction(written_by_python):
                    # Of fields, which are the arguments.
                    member.set_member("__init__", function("__init__", written_by_python, member))
            translate(module)


def modules(module: griffe.Module) -> Iterator[griffe.Module]:
    yield module
    for inner in module.modules.values():
        if not inner.is_alias:
            yield from modules(inner)


def function(name: str, value: Callable[..., Any], attribute: Any) -> griffe.Function:
    """Return what Griffe would have read if the function were written out."""
    parameters = (
        griffe.Parameter(
            p.name,
            kind=getattr(griffe.ParameterKind, p.kind.name.lower()),
            annotation=None if p.annotation is p.empty else ANNOTATED.sub(r"\1", str(p.annotation)),
            default=None if p.default is p.empty else repr(p.default),
        )
        for p in inspect.signature(value).parameters.values()
    )
    result = griffe.Function(
        name, parameters=griffe.Parameters(*parameters), lineno=attribute.lineno
    )
    result.docstring = griffe.Docstring(inspect.getdoc(value) or "", parent=result)
    return result


def translate(owner: Any) -> None:
    """Make Markdown of the docstrings of an object and of all inside it, and types short."""
    if owner.docstring is not None:
        owner.docstring.value = as_markdown(owner.docstring.value)
    for parameter in owner.parameters if owner.is_function else ():
        parameter.annotation = plain(parameter.annotation)
    for member in owner.members.values():
        if not member.is_alias and not member.is_module:
            translate(member)


def plain(annotation: Any) -> Any:
    """Return an annotation without what `Annotated` adds for checks."""
    if isinstance(annotation, griffe.ExprBinOp):
        annotation.left, annotation.right = plain(annotation.left), plain(annotation.right)
    elif isinstance(annotation, griffe.ExprSubscript) and str(annotation.left) == "Annotated":
        return annotation.slice.elements[0]
    return annotation


def as_markdown(docstring: str) -> str:
    """Return a docstring with its columns of names and meanings as lists, its examples as code."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(docstring))
    return "\n\n".join(map(paragraph, paragraphs))


def paragraph(text: str) -> str:
    """Return a paragraph as Markdown.

    >>> print(paragraph("lr     the learning rate, which\\n       may change\\nbetas  two numbers"))
    * `lr`: the learning rate, which may change
    * `betas`: two numbers
    >>> paragraph("two  words apart,\\nand no columns")
    'two  words apart,\\nand no columns'
    """
    if text.startswith(">>> "):
        return f"```pycon\n{text}\n```"
    entries = columns(text.split("\n"))
    if entries is None:
        return text
    return "\n".join(f"* `{name}`: {meaning}" for name, meaning in entries)


def columns(lines: list[str]) -> list[tuple[str, str]] | None:
    """Return the names of two columns with their meanings; None for anything else."""
    first = ENTRY.fullmatch(lines[0])
    if first is None:
        return None
    start = first.start(2)
    entries: list[tuple[str, str]] = []
    for line in lines:
        name, gap, meaning = line[: start - 2].strip(), line[start - 2 : start], line[start:]
        if gap.strip() or meaning.startswith(" "):
            return None
        if name:
            entries.append((name, meaning))
        else:
            entries[-1] = (entries[-1][0], f"{entries[-1][1]} {meaning}")
    return entries
