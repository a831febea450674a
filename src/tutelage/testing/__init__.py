"""What tests need, public so that yours are as easy to write as ours.

`ScriptedEngine` answers with a script (`scripted.py`), for agents without a model;
`tiny.py` makes a very small policy, and the native engine over it, in a moment and without a
network. `check_environment` plays an environment and reports what it breaks (`environments.py`).
Nothing in the library imports this package.
"""

from tutelage.testing.environments import check_environment
from tutelage.testing.scripted import ScriptedEngine
from tutelage.testing.tiny import tiny_engine, tiny_policy

__all__ = ["ScriptedEngine", "check_environment", "tiny_engine", "tiny_policy"]
