"""Photograph the page of view.py at the last turn of a trajectory; docs/view.png came from this.

    python tests/photograph.py out/frozenlake_ppo/view.html 41 docs/view.png

Wants playwright (requirements-dev.txt) and Chromium.
"""

import shutil
import sys
from pathlib import Path


def open_browser(playwright):
    """Headless Chromium of playwright's or of the system. Raises: ValueError where there is none."""
    installed = map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))
    paths = [
        path
        for path in (playwright.chromium.executable_path, *installed)
        if path and Path(path).is_file()
    ]
    if not paths:
        raise ValueError(
            "no Chromium here; .venv/bin/playwright install chromium, or apt-get install chromium"
        )
    return playwright.chromium.launch(executable_path=paths[0])


def photograph(browser, html: Path, index: int, path: Path) -> None:
    opened = browser.new_page(viewport={"width": 1280, "height": 860})
    opened.goto(html.resolve().as_uri())
    opened.evaluate(f"go({index}, 99)")
    opened.screenshot(path=path)
    opened.close()


if __name__ == "__main__":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        photograph(open_browser(started), Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
