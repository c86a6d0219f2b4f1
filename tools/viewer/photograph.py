"""Open Chromium and take screenshots of the page that tools/view.py writes."""

from configurator import UserError

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Playwright

SYSTEM_BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def open_browser(playwright: "Playwright") -> "Browser":
    """Start headless Chromium. If playwright's own Chromium is not installed, start the Chromium or
    Chrome of the system.

    Raises:
        UserError: no Chromium is installed.
    """
    candidates = [playwright.chromium.executable_path, *map(shutil.which, SYSTEM_BROWSERS)]
    for path in candidates:
        if path and Path(path).is_file():
            return playwright.chromium.launch(executable_path=path)
    raise UserError(
        "found no Chromium; run .venv/bin/playwright install chromium, or apt-get install chromium"
    )


def photograph(browser: "Browser", html: Path, index: int, path: Path) -> None:
    """Open the page `html` at the last turn of trajectory number `index`. Save a screenshot of
    2560 by 1720 pixels in the file `path`.
    """
    page = browser.new_page(viewport={"width": 1280, "height": 860}, device_scale_factor=2)
    page.goto(html.resolve().as_uri())
    page.evaluate(f"show({index}, Infinity)")
    page.screenshot(path=path)
    page.close()
