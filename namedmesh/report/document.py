"""The HTML file: the template, style and scripts of `static/` joined with the data of a page."""

from __future__ import annotations

import functools
import html
import importlib.resources
import json
import re
from typing import Any

STYLES = ("colours.css", "layout.css", "views.css", "print.css")
# In the order in which each needs those before it; they share one scope in the page.
SCRIPTS = (
    "format.js",
    "model.js",
    "costs.js",
    "address.js",
    "parts.js",
    "overview.js",
    "program.js",
    "shards.js",
    "tensor.js",
    "timeline.js",
    "collectives.js",
    "memory.js",
    "roofline.js",
    "code.js",
    "differences.js",
    "app.js",
)
LIBRARY = "vendor/htm-preact.js"


@functools.cache
def read_static(name: str) -> str:
    """Read a file of `static/`, which is part of the package."""
    folder = importlib.resources.files("namedmesh.report") / "static"
    return folder.joinpath(*name.split("/")).read_text(encoding="utf-8")


def build_document(title: str, data: dict[str, Any]) -> str:
    """Build a page that needs nothing but itself."""
    parts = {
        "title": html.escape(title),
        "style": "\n".join(map(read_static, STYLES)),
        "data": encode_data(data),
        "library": read_static(LIBRARY),
        "script": "\n".join(map(read_static, SCRIPTS)),
    }
    # In one pass: text that is put in may itself contain what looks like a name in braces.
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], read_static("page.html"))


def encode_data(data: Any) -> str:
    r"""Encodes values as JSON that can stand in a script element.

    A browser ends the element at the first `</script`, wherever it is, and reads `<!--` as the
    start of a comment; JSON has another way to write the sign.
    """
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.replace("<", "\\u003c")
