"""How the repository's Markdown becomes a page of the site."""

import pytest
from mkdocs.exceptions import PluginError

from scripts.docs_hooks import fit


@pytest.mark.parametrize(
    ("page", "link", "shown"),
    [
        ("guides/games.md", "packs.md#start", "packs.md#start"),
        ("guides/wrappers.md", "../../envs/classic/README.md", "../reference/packs/classic.md"),
        ("reference/packs/board.md", "../../docs/guides/games.md", "../../guides/games.md"),
        ("internals/training.md", "../../ARCHITECTURE.md", "architecture.md"),
        ("index.md", "https://example.org/a.md", "https://example.org/a.md"),
        ("index.md", "#why", "#why"),
    ],
)
def test_links_to_where_the_target_is_on_the_site(page, link, shown):
    assert fit(f"see [this]({link})", page) == f"see [this]({shown})"


def test_rejects_link_to_a_file_missing_from_the_site():
    with pytest.raises(PluginError):
        fit("[this](../pyproject.toml)", "index.md")


@pytest.mark.parametrize(
    ("fence", "shown"),
    [("python file=a.py", 'python title="a.py"'), ("sh no-run", "sh"), ("python", "python")],
)
def test_hides_from_site_what_a_fence_says_to_the_tests(fence, shown):
    assert fit(f"```{fence}\nx = [1](2)\n```", "index.md") == f"```{shown}\nx = [1](2)\n```"
