"""The sandbox: where code that a model wrote runs, away from everything else.

Read `client.py` for how it is used, `confine.py` for what each tier keeps out, `server.py` for the
processes behind it, `worker.py` for the interpreter inside. Tools and rewards that run code
(`tools/python.py`, `rewards/code.py`) are its users.
"""

from tutelage.tools.sandbox.client import CodeResult, Sandbox, tier_problems, usable_tier
from tutelage.tools.sandbox.limits import MIB, TIERS, SandboxLimits, Tier
from tutelage.tools.sandbox.spawn import SandboxError

__all__ = [
    "MIB",
    "TIERS",
    "CodeResult",
    "Sandbox",
    "SandboxError",
    "SandboxLimits",
    "Tier",
    "tier_problems",
    "usable_tier",
]
