"""Copy the options of a request into the record of its call.

Every client of this package uses this; `types.py` has the types of both. Does not import torch.
"""

from __future__ import annotations

from typing import Any

from tutelage.types import ChatOptions


def option_fields(options: ChatOptions) -> dict[str, Any]:
    """Return the options of a request as fields of the recorded `Call`."""
    return {
        "tools": tuple(options.get("tools", ())),
        "sampling": options["sampling"],
        "agent": options.get("agent", "main"),
        "constraint": options.get("constraint"),
    }
