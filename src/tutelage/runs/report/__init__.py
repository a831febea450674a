"""Report of a run: one HTML page that explains what was trained, how, and how well.

The page is a pure function of the run folder and stands alone: no script, no network, no other
file. `source.py` reads the folder, `transcripts.py` makes rollouts readable, selects some and
counts outcomes, `charts.py` and `svg.py` draw curves, `view.py` formats the content, and
`weights.html.j2` is the template. Frame, parts and style are shared by the pages of all kinds
(`page.py`).
"""

from __future__ import annotations

from pathlib import Path

from tutelage.runs.folder import RunFolder, write_text


def write_report(folder: RunFolder) -> Path:
    """Write the HTML report of a run, finished or not, and return its path.

    The same folder gives the same bytes. Missing parts of the folder are left out with a remark.
    Raises `MissingExtraError` without the `train` extra and `RunError` if the file cannot be
    written.
    """
    from tutelage.runs.report.page import render_page
    from tutelage.runs.report.source import read_source
    from tutelage.runs.report.view import make_view

    view = make_view(read_source(folder))
    write_text(folder.report, render_page("runs/report/weights.html.j2", **view))
    return folder.report


__all__ = ["write_report"]
