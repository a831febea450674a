"""The gateway: an OpenAI-compatible endpoint of the policy for agents that we did not write.

`server.py` runs it and opens a `AttemptSession` for each attempt; `app.py` has the routes,
`keys.py` checks keys, `completions.py` has requests sampled once. Every API is a dialect
(`dialects/`): read into one internal request (`request.py`), written from one internal reply
(`reply.py`). The record of tokens is the client's (`engine/chat.py`, `engine/remote.py`);
`engine/scripted.py` has a client that needs no model.
"""

from tutelage.engine.script import Script
from tutelage.engine.scripted import ScriptedClient
from tutelage.gateway.limits import GatewayLimits
from tutelage.gateway.record import RecordedRequest
from tutelage.gateway.server import Gateway
from tutelage.gateway.session import AttemptSession

__all__ = [
    "AttemptSession", "Gateway", "GatewayLimits", "RecordedRequest", "Script", "ScriptedClient",
]  # fmt: skip
