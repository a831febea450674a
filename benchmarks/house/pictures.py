"""Draw the pictures of the README: the terminal while `make train` runs to its end, and the report.

    pip install pyte; apt install chromium
    python -m benchmarks.house.pictures [RUN]      # a finished run to draw, else one is trained

The command runs in a terminal of 110 columns, whose screen is read by pyte; Chromium draws the
screen and `report.html` into `docs/pictures`.
"""

from __future__ import annotations

import html
import os
import pty
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyte

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "docs" / "pictures"
COLUMNS, ROWS = 110, 200
COLOURS = {
    "default": "#d8dee9", "red": "#ff7b72", "green": "#7ee787", "brown": "#e3b341",
    "blue": "#79c0ff", "magenta": "#d2a8ff", "cyan": "#76e3ea", "white": "#f0f6fc",
}  # fmt: skip


def on_terminal(words: list[str]) -> pyte.Screen:
    """Run a command in a terminal and return the screen that it leaves."""
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    environment = {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)}
    parent, child = pty.openpty()
    process = subprocess.Popen(
        words, stdin=child, stdout=child, stderr=child, env=os.environ | environment, close_fds=True
    )
    os.close(child)
    while True:
        try:
            data = os.read(parent, 65536)
        except OSError:
            break
        if not data:
            break
        stream.feed(data)
    process.wait()
    return screen


def page_of(screen: pyte.Screen, title: str) -> str:
    """Return an HTML page that shows a screen."""
    lines: list[str] = []
    for row in range(ROWS):
        line = ""
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            colour = COLOURS.get(
                cell.fg, f"#{cell.fg}" if len(cell.fg) == 6 else COLOURS["default"]
            )
            weight = "bold" if cell.bold else "normal"
            line += (
                f'<span style="color:{colour};font-weight:{weight}">{html.escape(cell.data)}</span>'
            )
        lines.append(line)
    while lines and not screen.display[len(lines) - 1].strip():
        lines.pop()
    return (
        "<meta charset=utf-8><body style='margin:0;background:#0d1117'>"
        f"<pre style='margin:0;padding:18px 22px;font:15px/1.35 DejaVu Sans Mono,monospace'>"
        f"<span style='color:#7ee787'>$</span> <span style='color:#f0f6fc'>{title}</span>\n"
        + "\n".join(lines)
        + "</pre>"
    )


def draw(page: Path, file: Path, width: int, height: int) -> None:
    """Draw a page into a PNG file."""
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic",
                "--no-first-run", "--disable-background-networking", "--disable-component-update",
                "--disable-sync", "--hide-scrollbars", f"--user-data-dir={profile}",
                f"--window-size={width},{height}", f"--screenshot={file}", page.as_uri(),
            ],
            check=True, capture_output=True,
        )  # fmt: skip


def main() -> None:
    """Train or show a run, and draw it."""
    PICTURES.mkdir(exist_ok=True)
    tutelage = str(Path(sys.executable).parent / "tutelage")
    with tempfile.TemporaryDirectory() as place:
        run = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("runs/first")
        os.chdir(place if len(sys.argv) == 1 else ".")
        shown = ["show", str(run)] if len(sys.argv) > 1 else ["train", "math", "--output", str(run)]
        screen = on_terminal([tutelage, *shown])
        page = Path(place) / "terminal.html"
        page.write_text(page_of(screen, "make train"), encoding="utf-8")
        used = max(n for n, line in enumerate(screen.display) if line.strip())
        draw(page, PICTURES / "terminal.png", 1040, 60 + used * 22)
        shutil.copy(run / "report.html", Path(place) / "report.html")
        draw(Path(place) / "report.html", PICTURES / "report.png", 1100, 900)


if __name__ == "__main__":
    main()
