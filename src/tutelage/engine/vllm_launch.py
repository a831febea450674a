"""Launch a vLLM server on this machine as a child process that ends with the run.

It listens on the loopback only, since its routes for weights require no key. Flags and variables
avoid defaults of vLLM 0.32: chunked prefill with a seed per request ends its engine on a CPU
(`--max-num-batched-tokens`), log-probabilities are those before the temperature, routes for token
ids and weights are off, and usage is reported. Servers are not monitored or restarted here, for
which users have other tools; this one is for a laptop, and for tests.
"""

from __future__ import annotations

import os
import subprocess
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from socket import create_server
from time import monotonic, sleep
from typing import TYPE_CHECKING

import httpx2

from tutelage.engine.weight_transfer import BACKEND, PLUGIN
from tutelage.errors import ConfigError, EngineError

if TYPE_CHECKING:
    from collections.abc import Callable

_READY, _END = 900.0, 20.0
"""Seconds to wait for the model to load, and for the server to end."""
_WATCH = """trap '' INT TERM; read -r _; kill -s TERM -- -$0
for _ in $(seq $1); do kill -s 0 -- -$0 || exit 0; sleep 1; done; kill -s KILL -- -$0"""
_BATCH = 16384
"""Tokens per batch: the prompts of a whole batch of rollouts, so that none is split."""
_ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_CI_ENV": "1",
}
_LAUNCHERS = ("RANK", "WORLD_SIZE", "MASTER_", "LOCAL_", "GROUP_", "ROLE_", "TORCHELASTIC_")
"""Prefixes of the variables by which torchrun identifies ranks: a server is no rank."""
_UNLESS_SET = {"VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """Options of a vLLM server that is launched by the run."""

    model: str
    """A Hugging Face folder."""
    dtype: str
    max_length: int
    adapters: int = 0
    """Rank of the adapters that are sent to it; 0 if all tensors are sent."""
    tensor_parallel: int = 1
    memory: float = 0.5
    """Fraction of a device's memory that it uses."""
    sequences: int = 128
    """Maximum number of concurrent rollouts."""
    on_cpu: bool = True

    def arguments(self, port: int) -> list[str]:
        """Return the command-line arguments of the vLLM server."""
        args = ["-m", "vllm.entrypoints.openai.api_server", "--host", "127.0.0.1"]
        args += ["--port", str(port), "--model", self.model, "--served-model-name", "policy"]
        args += ["--dtype", self.dtype, "--max-model-len", str(self.max_length), "--seed", "0"]
        args += ["--max-num-seqs", str(self.sequences), "--enable-scale-out"]
        args += ["--logprobs-mode", "processed_logprobs"]
        args += ["--gpu-memory-utilization", f"{self.memory:g}"]
        args += ["--tensor-parallel-size", str(self.tensor_parallel)]
        if self.on_cpu:
            args += ["--enforce-eager", "--no-enable-chunked-prefill"]
            args += ["--max-num-batched-tokens", str(max(_BATCH, self.max_length))]
        if self.adapters:
            return [*args, "--enable-lora", "--max-lora-rank", str(max(8, self.adapters))]
        return [*args, "--weight-transfer-config", f'{{"backend": "{BACKEND}"}}']


class LocalServer:
    """vLLM server that runs as a child process, at `url`, until `stop` is called."""

    def __init__(
        self,
        python: str,
        options: ServerOptions,
        log: Path,
        note: Callable[[str], None] = lambda _: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> None:
        """Start the server with the interpreter `python` without waiting for it. Its output is
        written to `log`.

        Raises `ConfigError` if the interpreter does not exist.
        """
        if not os.access(python, os.X_OK):
            raise ConfigError(
                f"rollout.vllm_python={python!r} is not an executable; set it to the Python "
                "interpreter of an environment with vLLM, or set rollout.servers"
            )
        with closing(create_server(("127.0.0.1", 0))) as free:
            port: int = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self._log, self._note, self._should_stop = log, note, should_stop
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(_LAUNCHERS)}
        environment = {**_UNLESS_SET, **inherited, **_ENVIRONMENT, "PYTHONPATH": str(PLUGIN)}
        with log.open("ab") as output:
            self._child = subprocess.Popen(
                [python, "-W", "ignore", *options.arguments(port)],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._watchdog = _start_watchdog(self._child.pid)

    def wait(self) -> None:
        """Wait until the server responds. Raises `EngineError` if it ends or takes too long."""
        self._note(f"starting vLLM at {self.url}; its log is {self._log}")
        started = monotonic()
        while monotonic() - started < _READY and not self._should_stop():
            if self._child.poll() is not None:
                lines = self._log.read_text(errors="replace").splitlines()
                errors = [line for line in lines if "Error" in line]
                last = (errors or lines or ["it printed nothing"])[-1][-300:]
                raise EngineError(
                    f"vLLM exited with code {self._child.returncode}, see {str(self._log)!r}: "
                    f"{last}"
                )
            with suppress(httpx2.HTTPError):
                if httpx2.get(f"{self.url}/health", timeout=5.0, trust_env=False).is_success:
                    return
            sleep(0.5)
        raise EngineError(f"vLLM did not become ready, see {str(self._log)!r}")

    def stop(self) -> None:
        """End the server and its child processes. They also end if this process is killed."""
        assert self._watchdog.stdin is not None
        self._watchdog.stdin.close()
        self._child.wait()
        self._watchdog.wait()


def _start_watchdog(group: int) -> subprocess.Popen[bytes]:
    """Start a watchdog process that ends the process group `group` when its stdin is closed.

    The stdin closes at the latest when this process dies. vLLM ignores SIGTERM while it loads its
    model, and its engine outlives its server.
    """
    return subprocess.Popen(
        ["sh", "-c", _WATCH, str(group), str(int(_END))],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
