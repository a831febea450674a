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
            yield "rollout.servers", f"{url!r} is not an HTTP URL", "Use http://HOST:PORT."
        elif parts.path:
            way = f"Use {parts.scheme}://{parts.netloc}, without {parts.path}."
            yield "rollout.servers", f"{url!r} must not have a path", way
    if len(set(urls)) < len(urls):
        yield "rollout.servers", "duplicate server", "List each server once."
    if not urls and machine.device_of(config) == "cuda":
        yield (
            "rollout.name",
            "a vLLM server started by the run would share the GPU with training, which is not "
            "supported",
            "Use rollout.name=native, or start vLLM on other GPUs and set rollout.servers.",
        )
    if config.agent.placement != "local":
        yield (
            "agent.placement",
            "workers that sample from vLLM servers are not supported yet",
            "Use agent.placement=local, or rollout.name=native.",
        )
    yield from _transports(config)


def _transports(config: RunConfig) -> Iterator[Finding]:
    """What is sent to and fro."""
    rollout = config.rollout
    if rollout.weight_transfer == "nccl":
        yield (
            "rollout.weight_transfer",
            "not supported yet: it is not tested on GPUs",
            "Use rollout.weight_transfer=file.",
        )
    if rollout.weight_transfer == "lora" and not config.model.lora.rank:
        yield (
            "rollout.weight_transfer",
            "it sends adapters, but model.lora.rank is 0",
            "Use rollout.weight_transfer=file, or model.lora.rank=16.",
        )
    if config.needs_calls:
        yield (
            "agent.tool_choice",
            "vLLM cannot be constrained to the grammar of a tool call",
            "Use agent.tool_choice=auto, or rollout.name=native.",
        )
