"""Dialects: the model APIs that the gateway serves, one file each.

`dialect.py` defines their parts, `reading.py` has the parts of requests that they share.
"""

from tutelage.gateway.dialects.chat_completions import CHAT_COMPLETIONS
from tutelage.gateway.dialects.completions import COMPLETIONS
from tutelage.gateway.dialects.dialect import Dialect
from tutelage.gateway.dialects.messages import MESSAGES
from tutelage.gateway.dialects.responses import RESPONSES

DIALECTS = (CHAT_COMPLETIONS, RESPONSES, MESSAGES, COMPLETIONS)

__all__ = ["CHAT_COMPLETIONS", "COMPLETIONS", "DIALECTS", "MESSAGES", "RESPONSES", "Dialect"]
