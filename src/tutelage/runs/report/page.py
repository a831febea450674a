"""HTML pages from templates, with every text escaped.

Templates are named relative to the package's folder; `page.html.j2` is the frame of all pages,
`parts.html.j2` has shared parts. Autoescaping is always on; only drawings, which contain no text
from a run, pass as markup. A content security policy forbids scripts and requests.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from tutelage.runs.report.formatting import count, percent, sanitize

if TYPE_CHECKING:
    import jinja2


def render_page(template: str, **values: Any) -> str:
    """Render a template to an HTML page."""
    return _get_environment().get_template(template).render(**values) + "\n"


@functools.cache
def _get_environment() -> jinja2.Environment:
    """Return the cached Jinja environment with compiled templates."""
    import jinja2
    from markupsafe import Markup

    def escape_value(value: Any) -> Any:
        # Runs before escaping, on every expression of a template.
        return (
            sanitize(value) if isinstance(value, str) and not hasattr(value, "__html__") else value
        )

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tutelage", ""),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=escape_value,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"markup": Markup, "count": count, "percent": percent}
    return environment
