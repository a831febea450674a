"""The paths and variables of agent-lightning 1.0, so that its agents train here as they are.

They read `AGL_OPENAI_BASE_URL`, `AGL_KEY` and `AGL_EVENT_URL`, ask a model at the first and post
their reward to the last; some read the rollout or the mode out of the URLs. So the URLs have that
project's form, which `app.py` has routes for.
"""

from __future__ import annotations

from collections.abc import Mapping

from tutelage.types import Mode


def environment(base_url: str, key: str, mode: Mode) -> Mapping[str, str]:
    """What an agent of agent-lightning finds its attempt by."""
    root, _, rollout = base_url.removesuffix("/v1").rpartition("/rollout/")
    kind = "train" if mode is Mode.TRAIN else "val"
    return {
        "AGL_OPENAI_BASE_URL": f"{root}/proxy/rollout/{rollout}/mode/{kind}/openai/v1",
        "AGL_EVENT_URL": f"{root}/api/rollouts/{rollout}/events",
        "AGL_KEY": key,
    }
