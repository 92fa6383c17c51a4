"""Take page.png, the README's picture: the first screen of chapter 1.5 as `make book` made it.

python book/images/page.py [TARGET]
"""

import io
import shutil
import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

PAGE = Path(__file__).parents[2] / "_build" / "html" / "book" / "15_transfers.html"


def take(target: Path) -> None:
    """Write the picture to ``target``."""
    with sync_playwright() as playwright:
        path = shutil.which("chromium") or playwright.chromium.executable_path
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 1060}, color_scheme="light")
        page.goto(PAGE.as_uri())
        page.evaluate("document.fonts.ready")
        taken = page.screenshot(animations="disabled")
        browser.close()
    Image.open(io.BytesIO(taken)).convert("RGB").quantize(64).save(target, optimize=True)


if __name__ == "__main__":
    take(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_suffix(".png"))
