"""Builds the documentation as a website in dist/site: search, light and dark, nothing loaded from elsewhere.

The pages keep the places that they have in the repository, so that their relative links hold in both. What a
page links to outside of docs/, such as an example, is copied beside it. `make site` runs the script with the
tools of requirements/site.lock.
"""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
TREE = ROOT / "dist/site-pages"
SITE = ROOT / "dist/site"
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
FENCE = re.compile(r"^(```|~~~).*?^\1\s*$", re.MULTILINE | re.DOTALL)
SECTIONS = {
    "tutorial": "Tutorial",
    "howto": "How-to",
    "reference": "Reference",
    "explanation": "Explanation",
    "runbooks": "Runbooks",
}
"""Folders of docs/ whose pages are in the menu; decisions and notebooks have one entry each."""
FIRST = {
    "Home": "README.md",
    "What is supported": "docs/reference/not-in-this-version.md",
    "Install": "docs/howto/install.md",
}
LAST = {
    "Glossary": "docs/glossary.md",
    "Changelog": "CHANGELOG.md",
    "Contributing": "CONTRIBUTING.md",
    "Security": "SECURITY.md",
    "All pages": "docs/index.md",
}


def copied_pages() -> set[Path]:
    """Copy the pages and what they link to; return the copied paths, relative to the root.

    A link to a folder becomes a link to its README.md, or plain text if it has none.
    """
    shutil.rmtree(TREE, ignore_errors=True)
    waiting = [path.relative_to(ROOT) for path in sorted((ROOT / "docs").rglob("*.md"))]
    waiting += [Path(page) for page in (*FIRST.values(), *LAST.values())]
    copied: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in copied:
            continue
        copied.add(path)
        target = TREE / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix != ".md":
            shutil.copyfile(ROOT / path, target)
            continue
        text = (ROOT / path).read_text(encoding="utf-8")
        for folder in sorted(set(_linked(path, text)), reverse=True):
            place = (ROOT / path.parent / folder).resolve()
            if not place.is_relative_to(ROOT):
                continue
            if place.is_file():
                waiting.append(place.relative_to(ROOT))
            elif place.is_dir():
                text = _with_folder(text, folder, has_page=(place / "README.md").is_file())
                if (place / "README.md").is_file():
                    waiting.append((place / "README.md").relative_to(ROOT))
        target.write_text(text, encoding="utf-8")
    return copied


def _linked(path: Path, text: str) -> list[str]:
    outside_of_code = FENCE.sub("", text)
    return [link for link, _ in LINK.findall(outside_of_code) if "://" not in link and ":" not in link]


def _with_folder(text: str, folder: str, *, has_page: bool) -> str:
    """Return the text whose links to a folder lead to its README.md, or are plain text without one."""
    link = re.compile(rf"\[([^\]]*)\]\({re.escape(folder)}\)")
    return link.sub(rf"[\1]({folder.rstrip('/')}/README.md)" if has_page else r"\1", text)


def menu() -> list[dict[str, object]]:
    """Return the menu: first pages, a section for each folder of docs/, then further pages."""
    entries: list[dict[str, object]] = [{title: page} for title, page in FIRST.items()]
    for folder, title in SECTIONS.items():
        pages = sorted((ROOT / "docs" / folder).glob("*.md"), key=_title)
        if folder == "tutorial":  # one continues the other, in the order of the index
            index = (ROOT / LAST["All pages"]).read_text(encoding="utf-8")
            pages.sort(key=lambda page: index.find(f"(tutorial/{page.name})\n"))
        entries.append({title: [str(page.relative_to(ROOT)) for page in pages]})
    for folder, title in (("adr", "Decisions"), ("notes", "Notebooks")):
        pages = sorted((ROOT / "docs" / folder).glob("*.md"))
        entries.append({title: [str(page.relative_to(ROOT)) for page in pages]})
    return [*entries, {"More": [{title: page} for title, page in LAST.items()]}]


def _title(page: Path) -> str:
    return page.read_text(encoding="utf-8").lstrip("# ").partition("\n")[0].lower()


def settings(copied: set[Path]) -> dict[str, object]:
    """Return the settings of the site's builder."""
    listed = set(re.findall(r"[\w./-]+\.md", yaml.safe_dump(menu())))
    others = [str(path) for path in copied if path.suffix == ".md" and str(path) not in listed]

    def palette(scheme: str, other: str, media: str) -> dict[str, object]:
        toggle = {"icon": "material/brightness-6", "name": f"Show {other}"}
        return {"media": media, "scheme": scheme, "primary": "teal", "accent": "teal", "toggle": toggle}

    theme = {
        "name": "material",
        "font": False,  # the reader's own fonts: nothing is loaded from elsewhere
        "palette": [
            palette("default", "dark", "(prefers-color-scheme: light)"),
            palette("slate", "light", "(prefers-color-scheme: dark)"),
        ],
        "features": [
            "navigation.tabs",
            "navigation.top",
            "navigation.footer",
            "content.code.copy",
            "search.suggest",
        ],
    }
    return {
        "site_name": "mambaserve",
        "docs_dir": TREE.name,
        "site_dir": SITE.name,
        "use_directory_urls": False,
        "theme": theme,
        "plugins": [{"search": {"lang": "en"}}],
        "markdown_extensions": [
            "admonition", "attr_list", "md_in_html", "tables", "pymdownx.superfences",
            {"pymdownx.highlight": {"anchor_linenums": True}},
            # Headings get the anchors that the links in the repository use.
            {"toc": {"permalink": True, "slugify": "SLUGIFY"}},
        ],
        "nav": menu(),
        "not_in_nav": "\n".join(f"/{path}" for path in others),
        "validation": {"links": {"anchors": "warn", "not_found": "warn", "unrecognized_links": "warn"}},
    }  # fmt: skip


def main() -> int:
    """Build the site; return 1 if a link or an anchor leads nowhere."""
    configuration = settings(copied_pages())
    file = ROOT / "dist/site.yml"
    text = yaml.safe_dump(configuration, sort_keys=False)
    # A function is named by a tag, which YAML without the builder's loader cannot write.
    text = text.replace("SLUGIFY", "!!python/object/apply:pymdownx.slugs.slugify {kwds: {case: lower}}")
    file.write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(file)]
    if subprocess.run(command, check=False).returncode:
        return 1
    print(f"wrote {SITE.relative_to(ROOT)}/index.html")
    return 0


if __name__ == "__main__":
    sys.exit(main())
