"""mkdocs hooks: add the generated pages, and adapt the repository's Markdown to the site.

The pages in `docs/` are also read in the repository, so they link to other files by relative paths. On the
site, a link to a file outside `docs/` points to a copy of that file; see `MIRRORED`.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.docs_reference import reference_files  # noqa: E402

MIRRORED = {
    "ARCHITECTURE.md": "internals/architecture.md",
    "CONTRIBUTING.md": "internals/contributing.md",
    "CHANGELOG.md": "changelog.md",
    "backend/models/nano/README.md": "reference/models/nano.md",
    "backend/models/nano-instruct/README.md": "reference/models/nano-instruct.md",
    "backend/models/nano-vl/README.md": "reference/models/nano-vl.md",
}
"""Files of the repository shown on the site, with their pages; packs and examples are added to them."""

_LINK = re.compile(r"(\]\()([^)#\s]*)(#[^)\s]*)?\)")
_FENCE = re.compile(r"^(```)(\w+) +(.*)$", re.MULTILINE)


def mirrored() -> dict[str, str]:
    """Return the site's page for each repository file shown outside `docs/`."""
    packs = {
        path.relative_to(ROOT).as_posix(): f"reference/packs/{path.parent.name}.md"
        for path in sorted(ROOT.glob("envs/*/README.md"))
    }
    examples = {
        path.relative_to(ROOT).as_posix(): f"examples/{path.stem}.md"
        for path in sorted(ROOT.glob("examples/*.py"))
    } | {
        path.relative_to(ROOT).as_posix(): f"examples/{path.parent.name}.md"
        for path in sorted(ROOT.glob("examples/*/train.py"))
    }
    return MIRRORED | packs | examples


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages and the copies of files outside `docs/`."""
    for path, text in reference_files().items():
        files.append(File.generated(config, path, content=text))
    for source, path in mirrored().items():
        text = (ROOT / source).read_text(encoding="utf-8")
        if source.endswith(".py"):
            text = example_page(ROOT / source, text)
        files.append(File.generated(config, path, content=text))
    return files


def example_page(script: Path, code: str) -> str:
    """Return the page of an example: the script, and its settings files if it has any."""
    recipe = script.name == "train.py"
    parts = [f"# {script.parent.name if recipe else script.name}\n\n```python\n{code}```\n"]
    for file in sorted(script.parent.glob("*.toml")) if recipe else []:
        parts.append(f"\n`{file.name}`:\n\n```toml\n{file.read_text(encoding='utf-8')}```\n")
    return "".join(parts)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Point links to their targets on the site, and convert fences for Python-Markdown."""
    return fit(markdown, page.file.src_uri)


def fit(markdown: str, path: str) -> str:
    """Return a page's text for the site.

    Args:
        markdown: The page's text in the repository.
        path: The page's path on the site, such as `guides/games.md`.
    """
    shown = mirrored()
    source = next((file for file, copy in shown.items() if copy == path), f"docs/{path}")

    def link(found: re.Match[str]) -> str:
        target, anchor = found[2], found[3] or ""
        if not target or ":" in target:
            return found[0]
        file = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        if file.startswith("docs/"):
            there = file.removeprefix("docs/")
        elif file in shown:
            there = shown[file]
        else:
            raise PluginError(
                f"{source} links to {file}, which is not on the site; write its name as code instead"
            )
        return f"{found[1]}{posixpath.relpath(there, posixpath.dirname(path) or '.')}{anchor})"

    return _outside_of_fences(_FENCE.sub(_plain_fence, markdown), lambda text: _LINK.sub(link, text))


def _plain_fence(found: re.Match[str]) -> str:
    # `file=PATH` is a title; other options are for the tests that run the block.
    file = re.search(r"file=(\S+)", found[3])
    return f'{found[1]}{found[2]} title="{file[1]}"' if file else f"{found[1]}{found[2]}"


def _outside_of_fences(markdown: str, change: Any) -> str:
    parts = re.split(r"(^(`{3,}).*?^\2$)", markdown, flags=re.MULTILINE | re.DOTALL)
    # Each fence keeps its backticks as a separate part.
    return "".join(part if i % 3 == 1 else "" if i % 3 == 2 else change(part) for i, part in enumerate(parts))
