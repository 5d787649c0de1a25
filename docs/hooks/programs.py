"""Run the programs of the site's pages while it is built, and show what they print.

A page whose head says `run: true` is one program: its ```python blocks run in order, in one Jupyter
kernel, and what each prints or displays follows it.  `output=c` after `python` says how to
highlight that.  Notebooks become such pages.  A program that fails stops the build.  One that needs
a library which is not installed, as `needs: torch` in the head or in the notebook's metadata says,
is shown without what it prints.
"""

from __future__ import annotations

import base64
import functools
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from importlib.util import find_spec
from typing import Any

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from mkdocs.utils.meta import get_data
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

BLOCK = re.compile(r"^```python(?: output=(\w+))?\n(.*?)^```$", re.M | re.S)
SECONDS = 120  # that a block may take
# Reports name the blocks, not IPython's temporary files; tqdm misses no widgets, which no page has.
FIRST = """
import warnings
warnings.filterwarnings("ignore", "IProgress not found")
get_ipython().compile.get_code_name = lambda raw, code, number: f"block {number - 1}"
"""
Program = tuple[str, ...]  # its blocks
Outputs = list[list[Any]]  # of each block

_pool = ThreadPoolExecutor(os.cpu_count())


@event_priority(50)  # type: ignore[untyped-decorator]  # before links are looked for
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Make pages of the notebooks, and begin to run the programs of all pages."""
    for file in [file for file in files if file.src_uri.endswith(".ipynb")]:
        uri = file.src_uri.removesuffix(".ipynb") + ".md"
        files.append(File.generated(config, uri, content=page_of_notebook(file)))
    for file in files.documentation_pages():
        text, meta = get_data(file.content_string)
        if runs(meta):
            running(program_of(text), file.src_uri)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Put behind each block of a program what it printed."""
    if not runs(page.meta):
        return markdown
    outputs = iter(running(program_of(markdown), page.file.src_uri).result())

    def with_outputs(block: re.Match[str]) -> str:
        language, code = block.groups()
        parts = (as_markdown(output, language or "text") for output in next(outputs))
        return "\n\n".join([f"```python\n{code}```", *filter(None, parts)])

    return BLOCK.sub(with_outputs, markdown)


def page_of_notebook(file: File) -> str:
    """Return a notebook as the text of a page that runs."""
    notebook = nbformat.reads(file.content_string, as_version=4)
    cells = [
        f"```python\n{cell.source}\n```" if cell.cell_type == "code" else cell.source
        for cell in notebook.cells
    ]
    title, _, text = "\n\n".join(cells).partition("\n")
    link = f'This page is the notebook <a href="{file.name}.ipynb">{file.name}.ipynb</a>.'
    needs = notebook.metadata.get("needs", "")
    return f"---\nrun: true\nneeds: {needs}\n---\n\n{title}\n\n{link}\n{text}"


def runs(meta: Mapping[str, Any]) -> bool:
    """Return whether the head of a page says that it runs, and what it needs is installed.

    >>> runs({"run": True}), runs({"run": True, "needs": "no_such_library"}), runs({})
    (True, False, False)
    """
    needs = (meta.get("needs") or "").split()
    return bool(meta.get("run")) and all(map(find_spec, needs))


def program_of(text: str) -> Program:
    return tuple(match[2] for match in BLOCK.finditer(text))


@functools.cache  # `mkdocs serve` runs again what was changed
def running(program: Program, name: str) -> Future[Outputs]:
    """Return the outputs to come of a program that runs."""
    return _pool.submit(run, program, name)


def run(program: Program, name: str) -> Outputs:
    """Return what each block of a program displays; PluginError for one that fails."""
    cells = [nbformat.v4.new_code_cell(block) for block in (FIRST, *program)]
    notebook = nbformat.v4.new_notebook(cells=cells)
    with tempfile.TemporaryDirectory() as folder:
        where = {"metadata": {"path": folder}}
        try:
            NotebookClient(
                notebook,
                timeout=SECONDS,
                resources=where,
                extra_arguments=["--log-level=ERROR"],
            ).execute()
        except (CellExecutionError, TimeoutError) as error:
            raise PluginError(f"a program of {name} failed: {error}") from None
    return [list(merged(cell.outputs)) for cell in notebook.cells[1:]]


def merged(outputs: list[Any]) -> Iterator[Any]:
    """Yield outputs, with what was printed in several pieces as one."""
    printed = None
    for output in outputs:
        if output.output_type != "stream":
            printed = None
        elif printed is not None and printed.name == output.name:
            printed.text += output.text
            continue
        else:
            printed = output
        yield output


def as_markdown(output: Any, language: str) -> str:
    """Return an output as a block of the page; progress bars leave their last state.

    >>> print(as_markdown(nbformat.v4.new_output("stream", text="10%\\r100%\\n"), "text"))
    ~~~~{.text .output}
    100%
    ~~~~
    """
    if output.output_type == "stream":
        lines = [line.rpartition("\r")[2].rstrip() for line in output.text.rstrip("\n").split("\n")]
        return fenced("\n".join(lines), language) if any(lines) else ""
    data = output.data
    if "text/html" in data:
        return f'<div class="output">{data["text/html"]}</div>'
    if "image/svg+xml" in data:
        picture = base64.b64encode(data["image/svg+xml"].encode()).decode()
        return f"![Picture made by the program](data:image/svg+xml;base64,{picture})"
    if "image/png" in data:
        return f"![Picture made by the program](data:image/png;base64,{data['image/png']})"
    return fenced(data["text/plain"], language)


def fenced(text: str, language: str) -> str:
    return f"~~~~{{.{language} .output}}\n{text}\n~~~~"
