"""The report of a run: one HTML page that explains what was trained, how, and how well.

The page is a pure function of the run folder and stands alone: no script, no network, no other
file. The road is `source.py` (read the folder, forgive what is missing) → `transcripts.py` (a
rollout as something to read, which ones to show, who solved what) → `charts.py` over `svg.py`
(curves) → `view.py` (what the page says) → `weights.html.j2` (how it looks). Frame, parts and style
are those of the pages of every kind (`page.py`).
"""

from __future__ import annotations

from pathlib import Path

from tutelage.runs.folder import RunFolder, write_text


def write_report(folder: RunFolder) -> Path:
    """Write `report.html` of a run, ended or not, and return its path.

    The same folder gives the same bytes. What the folder lacks is left out with a remark. Raises
    `MissingExtraError` without the `train` extra and `RunError` when the file cannot be written.
    """
    from tutelage.runs.report.page import render_page
    from tutelage.runs.report.source import read_source
    from tutelage.runs.report.view import make_view

    view = make_view(read_source(folder))
    write_text(folder.report, render_page("runs/report/weights.html.j2", **view))
    return folder.report


__all__ = ["write_report"]
