"""Render the page: the template with the view, every text escaped and made visible.

Autoescaping is on for all of it; only the drawings, which hold no text from a run, pass as markup.
The page forbids itself scripts and every request by a content security policy, so that even a
fault in escaping could do nothing. What is said is `view.py`'s matter.
"""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from tutelage.errors import MissingExtraError
from tutelage.runs.report.source import Source
from tutelage.runs.report.view import make_view
from tutelage.runs.report.words import count, percent, visible


def render(source: Source) -> str:
    """The HTML of a report. Raises `MissingExtraError` without the `train` extra."""
    here = files("tutelage.runs.report")
    template = (here / "page.html.j2").read_text(encoding="utf-8")
    return render_page(template, view=make_view(source))


def render_page(template: str, **values: Any) -> str:
    """A page of the house's look from a template, every text escaped and made visible.

    Raises `MissingExtraError` without the `train` extra.
    """
    try:
        import jinja2
        from markupsafe import Markup
    except ImportError as error:
        raise MissingExtraError("the report needs jinja2: pip install 'tutelage[train]'") from error

    def shown(value: Any) -> Any:
        # Runs before escaping, on every expression of the template.
        return (
            visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
        )

    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"markup": Markup, "count": count, "percent": percent}
    here = files("tutelage.runs.report")
    style = (here / "style.css").read_text(encoding="utf-8")
    return environment.from_string(template).render(style=style, **values) + "\n"
