"""Take a screenshot of the page of tools/view.py at the last turn of a trajectory.

    python tests/photograph.py out/frozenlake_ppo/view.html 41 docs/view.png

Needs playwright (requirements/dev.txt) and Chromium.
"""

import shutil
import sys
from pathlib import Path


def open_browser(playwright):
    """Start headless Chromium, of playwright or of the system.

    Raises:
        ValueError: neither is installed.
    """
    names = ("chromium", "chromium-browser", "google-chrome")
    candidates = [playwright.chromium.executable_path, *map(shutil.which, names)]
    for path in candidates:
        if path and Path(path).is_file():
            return playwright.chromium.launch(executable_path=path)
    raise ValueError(
        "found no Chromium; run .venv/bin/playwright install chromium, or apt-get install chromium"
    )


def photograph(browser, html: Path, index: int, path: Path) -> None:
    """Save the last turn of trajectory `index` as a PNG of 1280 by 860 pixels."""
    page = browser.new_page(viewport={"width": 1280, "height": 860})
    page.goto(html.resolve().as_uri())
    page.evaluate(f"show({index}, Infinity)")
    page.screenshot(path=path)
    page.close()


if __name__ == "__main__":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        photograph(open_browser(started), Path(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
