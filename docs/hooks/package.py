"""Make the page of the package from the README, whose links lead to files of the repository.

An index of packages shows that page alone, where such links lead nowhere: it names their files.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

README = Path(__file__).parents[2] / "README.md"
FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)
LINK = re.compile(r"(!?)\[([^]]*)\]\((?!\w+:)([^)#]*)(?:#[^)]*)?\)")


class Page(MetadataHookInterface):  # type: ignore[misc]
    def update(self, metadata: dict[str, Any]) -> None:
        """Add the README to what the package says of itself."""
        text = alone(README.read_text(encoding="utf-8"))
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def alone(text: str) -> str:
    """Return a document whose links to files and to its own parts are words.

    >>> alone("See [tuning](docs/caches.md), [docs/how.md](docs/how.md#c) and [speed](#speed).")
    'See tuning (docs/caches.md), docs/how.md and speed.'
    >>> alone("![Two kernels](a.svg) [numpy](https://numpy.org)")
    '(Picture: Two kernels, a.svg) [numpy](https://numpy.org)'
    """
    pieces = FENCE.split(text)
    pieces[::2] = [LINK.sub(_words, piece) for piece in pieces[::2]]
    return "".join(pieces)


def _words(link: re.Match[str]) -> str:
    picture, words, path = link.groups()
    if picture:
        return f"(Picture: {words}, {path})"
    return words if not path or path in words else f"{words} ({path})"
