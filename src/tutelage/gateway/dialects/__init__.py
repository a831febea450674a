"""Dialects: the model APIs that the gateway serves, one file each.

`dialect.py` defines the interface, `reading.py` has the parts of requests that they share.
"""

from tutelage.gateway.dialects.chat_completions import ChatCompletions
from tutelage.gateway.dialects.completions import Completions
from tutelage.gateway.dialects.dialect import Dialect
from tutelage.gateway.dialects.messages import Messages
from tutelage.gateway.dialects.responses import Responses

DIALECTS: tuple[Dialect, ...] = (ChatCompletions(), Responses(), Messages(), Completions())

__all__ = ["DIALECTS", "ChatCompletions", "Completions", "Dialect", "Messages", "Responses"]
