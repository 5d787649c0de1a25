"""Fill in the reference: a directive of mkdocstrings for each public name.

`<!-- reference: minigraph.nn by module -->` on a page stands for all public names of a package,
under the modules that define them; a mark may also list names.  In the prose of all pages,
`nn.Linear` becomes a link to its entry.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import re
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import Files
from mkdocs.structure.pages import Page

from minigraph.nn import Module
from minigraph.optim import Optimizer

MARK = re.compile(r"^<!-- reference:\s+([\w.\s]+?)( by module)?\s+-->$", re.M)
CODE = re.compile(r"(^(`{3,}|~{3,}).*?^\2$|^:::.*?$|^#.*?$|\[[^]]*\]\([^)]*\))", re.M | re.S)
NAME = re.compile(r"`((?:mg|mgt|nn|ops|optim)(?:\.\w+)+)((?:\([^`]*\))?)`(?!\])")
SHORT = {name: f"minigraph.{name}" for name in ("nn", "ops", "optim")}
SHORT |= {"mgt": "minigraph.torch", "mg": "minigraph"}
# Modules of classes whose instances programs receive but never create.
UNNAMED = tuple(
    f"minigraph.{part}."
    for part in (
        "autotune.measurement",
        "cache",
        "compiler",
        "graph",
        "inspect",
        "passes",
        "runtime",
    )
)
LEAVES = (Module, Optimizer, Exception)  # of their subclasses only the arguments are shown


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in what the page has marks for, and link the names in its prose."""
    documented = names(files)

    def link(match: re.Match[str]) -> str:
        package, _, name = match[1].partition(".")
        path = f"{SHORT[package]}.{name}"
        return f"[`{match[1]}{match[2]}`][{path}]" if path in documented else match[0]

    pieces = CODE.split(markdown)
    pieces[::3] = [NAME.sub(link, text) for text in pieces[::3]]
    del pieces[2::3]  # the marks of fences
    return MARK.sub(entries, "".join(pieces))


@functools.cache
def names(files: Files) -> frozenset[str]:
    """Return the full names of all that the pages have marks for."""
    texts = (file.content_string for file in files.documentation_pages())
    return frozenset(
        name for text in texts for mark in MARK.finditer(text) for name in values_of(mark)
    )


def values_of(mark: re.Match[str]) -> dict[str, Any]:
    """Return what a mark stands for, by full name: names, and the public names of packages."""
    values: dict[str, Any] = {}
    for path in mark[1].split():
        if path.startswith(SHORT["mgt"]):
            if not find_spec("torch"):
                continue  # the site needs no PyTorch: such entries are left out
            importlib.import_module(SHORT["mgt"])  # which `import minigraph` does not do
        package, _, name = path.rpartition(".")
        value = getattr(importlib.import_module(package), name) if package else None
        values |= {path: value} if callable(value) else public_names(path)
    return values


def public_names(path: str) -> dict[str, Any]:
    """Return the functions and classes that a package defines for users, by full name."""
    package = importlib.import_module(path)
    public = getattr(package, "__all__", vars(package))
    values = {name: getattr(package, name) for name in public if not name.startswith("_")}
    return {
        f"{path}.{name}": value
        for name, value in values.items()
        if callable(value)
        and (getattr(value, "__module__", None) or "").startswith(path)
        and value.__name__ == name
    }


def entries(mark: re.Match[str]) -> str:
    """Return the directives that a mark stands for."""
    groups: dict[str, list[str]] = {}
    for path, value in values_of(mark).items():
        groups.setdefault(value.__module__ if mark[2] else "", []).extend(directive(path, value))
    lines: list[str] = []
    for module, directives in groups.items():
        lines += [*heading(module), *directives] if module else directives
    return "\n".join(lines)


def heading(module: str) -> Iterator[str]:
    """Yield the lines above what a module defines: its subject, and its docstring's first line."""
    sentence = (importlib.import_module(module).__doc__ or "").partition("\n")[0]
    yield f"## {module.rpartition('.')[2].replace('_', ' ').capitalize()}\n\n{sentence}\n"


def directive(path: str, value: Any) -> Iterator[str]:
    """Yield the lines of the directive for a name.

    >>> print(*directive("minigraph.nn.Linear", LEAVES[0]), sep="\\n")
    ::: minigraph.nn.Linear
        options:
          heading: nn.Linear
    <BLANKLINE>
    """
    yield f"::: {path}"
    yield "    options:"
    yield f"      heading: {shortened(path)}"
    if path.startswith(UNNAMED):
        yield "      merge_init_into_class: false"
    if inspect.isclass(value) and issubclass(value, LEAVES) and value not in LEAVES:
        yield "      members: false"
    yield ""


def shortened(path: str) -> str:
    """Return a full name as programs write it; what they import from elsewhere alone.

    >>> shortened("minigraph.nn.init.uniform_"), shortened("minigraph.data.DataLoader")
    ('nn.init.uniform_', 'mg.data.DataLoader')
    >>> shortened("minigraph.inspect.report.Report")
    'Report'
    """
    if path.startswith((*UNNAMED, "minigraph.training.evaluation.")):
        return path.rpartition(".")[2]
    for short, full in SHORT.items():
        if path.startswith(f"{full}."):
            return short + path.removeprefix(full)
    raise ValueError(f"{path} is no name of minigraph")
