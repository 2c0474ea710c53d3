"""Hooks of `mkdocs build`: the files outside docs/ that the pages link to become part of the site.

On a forge, `../deploy/sluice.service` opens that file. The site copies it to `source/deploy/sluice.service` and points
the link there, so that the strict build checks these links, too.
"""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

OUTSIDE = re.compile(r"\]\(\.\./(?P<path>[^)#\s]+)")
FENCE_FILE = re.compile(r"^```(?P<language>\w+) file=(?P<file>\S+)$", re.MULTILINE)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    root = Path(config.docs_dir).parent
    pages = [page.content_string for page in files.documentation_pages()]
    for path in sorted({match["path"] for text in pages for match in OUTSIDE.finditer(text)}):
        if (root / path).is_file():
            name = f"source/{path}.txt" if path.endswith(".md") else f"source/{path}"
            files.append(File.generated(config, name, abs_src_path=str(root / path)))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    linked = OUTSIDE.sub(lambda match: f"](source/{match['path']}" + ".txt" * match["path"].endswith(".md"), markdown)
    return FENCE_FILE.sub(r'```\g<language> title="\g<file>"', linked)
