"""Paths and the endpoints that they lead to."""

import pytest

from tutelage.gateway.routes import Routes

ROUTES = Routes(
    {
        "/v1/models": "models",
        "/v1/models/{model:path}": "model",
        "/v1/responses/{response}": "response",
        "/v1/responses/{response}/cancel": "cancel",
    }
)
ATTEMPT = {"rollout": "r 1", "attempt": "a"}


@pytest.mark.parametrize(
    ("path", "endpoint", "said"),
    [
        ("/v1/models", "models", {}),
        ("/v1/models/a/b", "model", {"model": "a/b"}),
        ("/v1/responses/7", "response", {"response": "7"}),
        ("/rollout/r 1/attempt/a/v1/models", "models", ATTEMPT),
        ("/rollout/r 1/attempt/a/agent/v1/v1/models", "models", ATTEMPT | {"agent": "v1"}),
        ("/agent/g/v1/responses/7/cancel", "cancel", {"agent": "g", "response": "7"}),
    ],
)
def test_path_leads_to_its_endpoint_with_what_it_says(
    path: str, endpoint: str, said: dict[str, str]
):
    assert ROUTES.find(path) == (endpoint, said)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "/",
        "/v1",
        "/models",
        "/v1/responses",
        "/v1/responses/7/cancel/8",
        "/v1/models\n",
        "/v1/v1/models",
        "/rollout/r/v1/models",
        "/rollout/r/attempt/a/agent//v1/models",
        "/agent/g/rollout/r/attempt/a/v1/models",
        "/rollout/r/attempt/a/models",
    ],
)
def test_other_paths_lead_nowhere(path: str):
    assert ROUTES.find(path)[0] is None
