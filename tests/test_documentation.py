"""What the documentation build does not check: the navigation and the pages are the same set."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_navigation_lists_every_page_once() -> None:
    settings = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"[\w/-]+\.md\b", settings)
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")]
    assert sorted(listed) == sorted(pages)
