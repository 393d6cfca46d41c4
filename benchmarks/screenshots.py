"""Screenshots of every page at three widths, light and dark: to be looked at after a change of the pages.

    python -m benchmarks.screenshots OUT            # make pages with the commands below, build the site, take pictures
    python -m benchmarks.screenshots OUT --docs     # and renew the pictures of reports and sweeps in docs/pictures
    python -m benchmarks.screenshots OUT A.html     # pictures of these pages only

OUT gets one picture per page, width and colour scheme, and `sheet-PAGE.png` with all of a page. PAGE is the page's path in
OUT/pages, `-` for `/`. Chromium must be installed. Making the pages trains for minutes.
"""

import argparse
import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal

from PIL import Image
from playwright.sync_api import Browser, ViewportSize, sync_playwright

ROOT = Path(__file__).parents[1]
WIDTHS = (1400, 800, 390)
SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
COMMANDS = """
sweep strategy=fedavg,fedprox,central rounds=20 seed=0..4 --quiet
run rounds=20 out=runs/first
run rounds=20 strategy=local out=runs/local --no-report
report runs/first --page one.html
report runs/first runs/local --page several.html
report runs
report sweeps --page sweeps.html
run task=edges dataset=payments num_clients=3 rounds=10 out=runs/desk
run task=edges dataset=payments num_clients=3 rounds=10 strategy=local out=runs/alone
alerts runs/desk --client 0 --budget 5 --explained 5 --page alerts.html
explain runs/desk --client 0 --items 17,23 --page explain.html
worth runs/alone runs/desk --client 0 --page worth.html
worth runs/desk --coalitions runs/coalitions --page parties.html
"""
PICTURES: dict[str, tuple[str, int, int, Literal["light", "dark"]]] = {
    "report-desk": ("one", 1200, 2700, "light"),
    "report-dark": ("several", 1200, 2700, "dark"),
    "report-phone": ("one", 390, 3000, "light"),
    "runs-desk": ("runs/report", 1280, 620, "light"),
    "sweep-desk": ("sweeps", 1280, 1000, "light"),
    "sweep-phone": ("sweeps", 390, 844, "dark"),
}
"""Picture of the documentation → page, width and height in CSS pixels, colour scheme."""

SITE = ("index", "start", "second-day", "board", "keys", "methods/fedavg")


def make(folder: Path) -> list[Path]:
    """Write the pages of commands and of the site to a folder, and return their files."""
    folder.mkdir(parents=True)
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    for command in COMMANDS.strip().splitlines():
        print(f"$ fedgraph-flwr {command}", flush=True)
        subprocess.run([sys.executable, "-m", "fedgraph_flwr", *command.split()], cwd=folder, env=env, check=True)
    example = [sys.executable, str(ROOT / "examples/banks/three_months.py"), "months", "--days", "1"]
    subprocess.run(example, cwd=folder, env=env, check=True)
    site = folder / "site"
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "-q", "-d", site.absolute()], cwd=ROOT, check=True)
    pages = [*folder.glob("*.html"), *(folder / "sweeps").rglob("*.html"), *(folder / "runs").glob("*.html")]
    return [*pages, folder / "months" / "drift.html", *(site / f"{name}.html" for name in SITE)]


def shoot(browser: Browser, page: Path, name: str, out: Path) -> None:
    """Take the pictures of a page, and join them in one sheet."""
    pictures: list[Image.Image] = []
    for scheme in SCHEMES:
        for width in WIDTHS:
            context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
            tab = context.new_page()
            tab.goto(page.absolute().as_uri(), timeout=600_000)
            tab.wait_for_timeout(1500)  # charts have drawn, and their animations ended
            file = out / f"{name}-{width}-{scheme}.png"
            tab.screenshot(path=file, full_page=True, timeout=600_000)  # ms: a busy machine takes its time
            pictures.append(Image.open(file))
            context.close()
    size = sum(picture.width for picture in pictures), max(picture.height for picture in pictures)
    sheet = Image.new("RGB", size, "grey")
    left = 0
    for picture in pictures:
        sheet.paste(picture, (left, 0))
        left += picture.width
    sheet.save(out / f"sheet-{name}.png")


def illustrate(browser: Browser, pages: Path) -> None:
    """Renew the pictures of `PICTURES`, from the top of their pages; those of phones at one and a half times the size."""
    for name, (page, width, height, scheme) in PICTURES.items():
        size: ViewportSize = {"width": width, "height": height}
        scale = 1.5 if width < 500 else 1
        context = browser.new_context(viewport=size, color_scheme=scheme, device_scale_factor=scale, offline=True)
        tab = context.new_page()
        tab.goto((pages / f"{page}.html").absolute().as_uri(), timeout=600_000)
        tab.wait_for_timeout(1500)
        picture = Image.open(io.BytesIO(tab.screenshot(timeout=600_000))).convert("RGB")
        picture.save(ROOT / "docs" / "pictures" / f"{name}.webp", quality=80, method=6)
        context.close()


def main() -> None:
    """Take pictures of the given pages, or of all."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("pages", type=Path, nargs="*")
    parser.add_argument("--docs", action="store_true", help="renew the pictures in docs/pictures")
    args = parser.parse_args()
    made = (args.out / "pages").absolute()
    pages = args.pages or make(made)
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for page in pages:
            path = page.absolute()
            inside = path.relative_to(made) if path.is_relative_to(made) else Path(page.name)
            shoot(browser, page, "-".join(inside.with_suffix("").parts), args.out)
            print(page, flush=True)
        if args.docs:
            illustrate(browser, made)
        browser.close()


if __name__ == "__main__":
    main()
