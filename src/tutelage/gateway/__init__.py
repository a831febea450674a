"""The gateway: an OpenAI-compatible door to the policy for agents that we did not write.

`server.py` runs it and opens a `Door` for each attempt; `app.py` has the routes, `keys.py` decides
who may enter, `answers.py` has requests sampled once; `chat_*` and `responses_*` read and write the
two APIs. The record of tokens is the client's (`engine/chat.py`, `engine/remote.py`); `scripted.py`
is a client that needs no model.
"""

from tutelage.gateway.door import Door
from tutelage.gateway.limits import Limits
from tutelage.gateway.record import CallSpan
from tutelage.gateway.scripted import Script, ScriptedClient
from tutelage.gateway.server import Gateway

__all__ = ["CallSpan", "Door", "Gateway", "Limits", "Script", "ScriptedClient"]
