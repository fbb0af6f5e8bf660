"""A report's page, read back."""

import html.parser
import json

import namedmesh as nm


class Scripts(html.parser.HTMLParser):
    """The scripts of a page, as a browser would separate them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.addresses: list[str] = []
        self._inside = False
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.addresses += [value or "" for name, value in attrs if name in ("src", "href")]
        self._inside = tag == "script"
        if self._inside:
            self.scripts.append("")

    def handle_endtag(self, tag):
        self._inside = False

    def handle_data(self, data):
        if self._inside:
            self.scripts[-1] += data


def read_page(path) -> tuple[Scripts, list[dict]]:
    page = Scripts(path.read_text())
    content = json.loads(page.scripts[0])
    assert content["version"] == nm.__version__
    return page, content["plans"]
