"""Show on the site what documents link to outside of docs/: documents, code, pictures.

So the links of a document are right in the repository and on the site, and a link to nothing stops
a strict build.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PREFIX = "repository/"  # where on the site such files are
LANGUAGES = {".py": "python", ".c": "c", ".cu": "cuda", ".sh": "bash", ".toml": "toml"}
UNLISTED = InclusionLevel.NOT_IN_NAV
FENCE = re.compile(r"(^(`{3,}|~{3,}).*?^\2`*~*$)", re.M | re.S)
LINK = re.compile(r"(\]\()([^)#\s:]+)([)#])")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what documents link to outside of docs/, and what those documents link to."""
    waiting = [*files.documentation_pages()]
    while waiting:
        file = waiting.pop()
        for path in linked(file):
            if files.get_file_from_path(site_uri(path)) is None and (ROOT / path).is_file():
                added = site_file(path, config)
                files.append(added)
                waiting += [added] if path.endswith(".md") else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to where the files are on the site."""
    document = repository_path(page.file.src_uri)
    if document.endswith(tuple(LANGUAGES)):
        return markdown

    def relative(link: re.Match[str]) -> str:
        target = site_uri(resolved(document, link[2]))
        return link[1] + posixpath.relpath(target, posixpath.dirname(page.file.src_uri)) + link[3]

    pieces = FENCE.split(markdown)
    pieces[::3] = [LINK.sub(relative, text) for text in pieces[::3]]
    del pieces[2::3]  # the marks of fences
    return "".join(pieces)


def linked(file: File) -> Iterator[str]:
    """Yield the paths in the repository that a document links to, without those in docs/."""
    for text in FENCE.split(file.content_string)[::3]:
        for link in LINK.finditer(text):
            path = resolved(repository_path(file.src_uri), link[2])
            if not path.startswith("docs/"):
                yield path


def resolved(document: str, target: str) -> str:
    """Return the path in the repository to which a link of a document leads.

    >>> resolved("docs/reference/options.md", "../../SECURITY.md")
    'SECURITY.md'
    """
    return posixpath.normpath(posixpath.join(posixpath.dirname(document), target))


def repository_path(uri: str) -> str:
    """Return where a file of the site is in the repository."""
    if not uri.startswith(PREFIX):
        return f"docs/{uri}"
    path = uri.removeprefix(PREFIX)
    code = path.removesuffix(".md")
    return code if code.endswith(tuple(LANGUAGES)) else path


def site_uri(path: str) -> str:
    """Return where a file of the repository is on the site; code and notebooks are pages.

    >>> site_uri("docs/tour.md"), site_uri("SECURITY.md"), site_uri("minigraph/autodiff.py")
    ('tour.md', 'repository/SECURITY.md', 'repository/minigraph/autodiff.py.md')
    """
    if path.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", path.removeprefix("docs/"))
    return PREFIX + path + (".md" if path.endswith(tuple(LANGUAGES)) else "")


def site_file(path: str, config: MkDocsConfig) -> File:
    """Return a file of the repository as a file of the site."""
    source, uri = ROOT / path, site_uri(path)
    language = LANGUAGES.get(source.suffix)
    if language is None:
        return File.generated(config, uri, abs_src_path=str(source), inclusion=UNLISTED)
    head = f"---\ntitle: {path}\nsearch:\n  exclude: true\n---\n\n# `{path}`\n"
    text = f'{head}\n~~~~{{.{language} linenums="1"}}\n{source.read_text()}~~~~\n'
    return File.generated(config, uri, content=text, inclusion=UNLISTED)
