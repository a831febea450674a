"""Pages of the house's look: a template filled with values, every text escaped and made visible.

Templates are named from the package's folder; `page.html.j2` is the frame of all, `parts.html.j2`
has their shared parts. Autoescaping is on for all of it; only the drawings, which hold no text from
a run, pass as markup. A page forbids itself scripts and every request by a content security policy,
so that even a fault in escaping could do nothing.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tutelage.runs.report.formatting import count, percent, visible

if TYPE_CHECKING:
    import jinja2


def render_page(template: str, **values: Any) -> str:
    """The page."""
    return _environment().get_template(template).render(**values) + "\n"


@functools.cache
def _environment() -> jinja2.Environment:
    """Kept, since compiling the templates takes longer than filling them."""
    import jinja2
    from markupsafe import Markup

    def shown(value: Any) -> Any:
        # Runs before escaping, on every expression of a template.
        return (
            visible(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
        )

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tutelage", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=shown,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"markup": Markup, "count": count, "percent": percent}
    return environment
