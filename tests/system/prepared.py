"""The last that the server of `command.py` imports: what each of its forks would do again.

Templates are compiled, and what has been made until now is no garbage: a fork that looked through
it would have to copy it.
"""

from __future__ import annotations

import gc

from tutelage.runs.report import page

_environment = page._get_environment()  # pyright: ignore[reportPrivateUsage]
for _name in _environment.list_templates(extensions=["j2"]):
    _environment.get_template(_name)
gc.collect()
gc.freeze()
