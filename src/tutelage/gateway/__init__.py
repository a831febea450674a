"""The gateway: an OpenAI-compatible endpoint that serves the policy to external agents.

`server.py` runs the gateway and opens an `AttemptSession` for each attempt; `app.py` defines the
routes, `keys.py` checks API keys, and `completions.py` samples each request once. Each supported
API is a dialect (`dialects/`), which parses requests into a `ChatRequest` (`request.py`) and writes
replies from the internal reply (`reply.py`). Token records are kept by the clients
(`engine/chat.py`, `engine/remote.py`); `engine/scripted.py` has a client that needs no model.
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
