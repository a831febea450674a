"""What a run that samples with vLLM may not ask for: servers, transports and devices.

`checks.py` asks; what the servers themselves must be is found when the run begins
(`engine/vllm_client.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import urlsplit

from tutelage.config.facts import Machine
from tutelage.config.schema import RunConfig

Finding = tuple[str, str, str]


def vllm_findings(config: RunConfig, machine: Machine) -> Iterator[Finding]:
    """Key, reason, way out."""
    if config.rollout.name != "vllm":
        return
    urls = [url.rstrip("/") for url in config.rollout.servers]
    for url in urls:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            yield "rollout.servers", f"{url!r} is no http address", "Use http://HOST:PORT."
        elif parts.path:
            way = f"Use {parts.scheme}://{parts.netloc}, without {parts.path}."
            yield "rollout.servers", f"{url!r} has a path, and paths are added here", way
    if len(set(urls)) < len(urls):
        yield "rollout.servers", "it names a server twice", "Name each one once."
    if not urls and machine.device_of(config) == "cuda":
        yield (
            "rollout.name",
            "a server of the run's own would share the GPU with the training, which was not tried",
            "Use rollout.name=native, or start vLLM on other GPUs and name rollout.servers.",
        )
    if config.agent.placement != "local":
        yield (
            "agent.placement",
            "workers that sample at vLLM servers are not built yet",
            "Use agent.placement=local, or rollout.name=native.",
        )
    yield from _transports(config)


def _transports(config: RunConfig) -> Iterator[Finding]:
    """What is sent to and fro."""
    rollout = config.rollout
    if rollout.weight_transfer == "nccl":
        yield (
            "rollout.weight_transfer",
            "not built yet: it has to be seen on GPUs first",
            "Use rollout.weight_transfer=file.",
        )
    if rollout.weight_transfer == "lora" and not config.model.lora.rank:
        yield (
            "rollout.weight_transfer",
            "it sends adapters, and model.lora.rank is 0",
            "Use rollout.weight_transfer=file, or model.lora.rank=16.",
        )
    if config.needs_calls:
        yield (
            "agent.tool_choice",
            "vLLM cannot be held to the grammar of a tool call",
            "Use agent.tool_choice=auto, or rollout.name=native.",
        )
