"""The sandbox: runs model-written code in isolation.

Read `client.py` for the interface, `confine.py` for the isolation of each tier, `server.py` for the
process model, and `worker.py` for the interpreter inside. It is used by the tools and rewards that
run code (`tools/python.py`, `rewards/code.py`).
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
