"""Public helpers for tests of agents and environments.

`ScriptedEngine` replays scripted replies (`scripted.py`), for agents without a model; `tiny.py`
creates a very small policy, and the native engine over it, quickly and without a network.
`check_environment` plays an environment and reports violations of the protocol (`environments.py`).
Nothing in the library imports this package.
"""

from tutelage.testing.environments import check_environment as check_environment
from tutelage.testing.scripted import ScriptedEngine as ScriptedEngine
from tutelage.testing.tiny import tiny_engine as tiny_engine
from tutelage.testing.tiny import tiny_policy as tiny_policy
