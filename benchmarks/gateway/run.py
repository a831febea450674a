"""Requests a second and added latency of the gateway, beside a bare server and LiteLLM's proxy.

    python -m benchmarks.gateway.run [--litellm LITELLM_ENV/bin/python] [--out benchmarks/gateway]
    python -m benchmarks.gateway.run --before OTHER_CHECKOUT/src --rounds 20 --seconds 1

All answer the same scripted reply; LiteLLM does so by its own `mock_response`, which spares it the
upstream that it would otherwise call. Each server has one process pinned to one core, the load
generator (`load.py`) has another core. Rounds alternate between the servers; the median round
counts. Bars: at least 15 times LiteLLM's throughput at 64 connections; added median latency over
the bare server below 2 ms with one connection and at a quarter of the gateway's saturation; memory
flat over 100,000 requests. `--before` measures the gateway beside that of another checkout, and
beside LiteLLM's proxy where that is given too: a request takes at most 5 % more.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
SERVER_CORE, LOAD_CORE = 0, 1
MANY = 64
LITELLM_PORT = 18471
LITELLM_CONFIG = """
model_list:
  - model_name: scripted
    litellm_params:
      model: openai/scripted
      api_key: none
      mock_response: "The sum of 12 and 34 is 46, which I know without a calculator."
litellm_settings:
  telemetry: false
general_settings:
  master_key: sk-benchmark
"""
JSON = dict[str, Any]


@dataclass(frozen=True)
class Server:
    """A server that runs."""

    name: str
    pid: int
    port: int
    key: str

    def cpu_seconds(self) -> float:
        """Processor time that the process has used."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def memory_mb(self) -> float:
        """Resident memory of the process."""
        pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


@contextmanager
def ours(kind: str, source: Path | None = None, name: str | None = None) -> Generator[Server]:
    """The bare server or the gateway, of the `src` folder that is named."""
    command = [sys.executable, str(HERE / "servers.py"), kind, "--core", str(SERVER_CORE)]
    environment = os.environ | ({} if source is None else {"PYTHONPATH": str(source)})
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        wait_for(told["port"])
        yield Server(name or kind, process.pid, told["port"], told["key"])
    finally:
        process.kill()
        process.wait()


@contextmanager
def litellm(python: str) -> Generator[Server]:
    """LiteLLM's proxy with one worker, logging only errors."""
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.yaml")
        config.write_text(LITELLM_CONFIG)
        command = [
            str(Path(python).with_name("litellm")), "--config", str(config),
            "--port", str(LITELLM_PORT), "--host", "127.0.0.1", "--num_workers", "1",
        ]  # fmt: skip
        environment = os.environ | {
            "LITELLM_LOG": "ERROR",
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        process = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=environment,
            preexec_fn=lambda: os.sched_setaffinity(0, {SERVER_CORE}),
            cwd=folder,
        )
        try:
            wait_for(LITELLM_PORT, 180)
            yield Server("litellm", process.pid, LITELLM_PORT, "sk-benchmark")
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def wait_for(port: int, seconds: float = 30) -> None:
    """Until something answers HTTP there."""
    end = time.monotonic() + seconds
    while True:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5)
            return
        except urllib.error.HTTPError:
            return
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.1)


def load(server: Server, **given: float) -> JSON:
    """One run of the load generator."""
    before = server.cpu_seconds()
    command = [sys.executable, str(HERE / "load.py"), "--port", str(server.port)]
    command += ["--key", server.key, "--core", str(LOAD_CORE)]
    for name, value in given.items():
        command += [f"--{name}", str(value)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{server.name}: {done.stderr}")
    found = json.loads(done.stdout)
    if found["errors"] or "46" not in found["answer"]:
        raise RuntimeError(f"{server.name} answered wrongly: {found}")
    # What depends least on who else is at work on the machine.
    found["cpu_us"] = 1e6 * (server.cpu_seconds() - before) / found["requests"]
    return found


def middle(found: list[JSON], key: str) -> float:
    """The median round."""
    return statistics.median(f[key] for f in found)


def rounds(servers: list[Server], count: int, seconds: float, **given: float) -> dict[str, Any]:
    """Alternating rounds on servers that wait for their turn."""
    found: dict[str, list[JSON]] = {s.name: [] for s in servers}
    for _ in range(count):
        for server in servers:
            found[server.name].append(load(server, seconds=seconds, **given))
    return {
        name: {key: middle(r, key) for key in ("rate", "median_ms", "p99_ms", "cpu_us")}
        for name, r in found.items()
    }


def compare_with(source: Path, proxy: str | None, count: int, seconds: float, each: int) -> None:
    """This gateway beside another version's, and LiteLLM's proxy where it is given, in alternating
    rounds; several processes of each version, since two of one version differ, too."""
    print(machine())
    with ExitStack() as stack:
        pair = (("before", source), ("gateway", None))
        servers = [
            stack.enter_context(ours("gateway", path, name))
            for _ in range(each)
            for name, path in pair
        ]
        if proxy is not None:
            servers.append(stack.enter_context(litellm(proxy)))
        for server in servers:
            load(server, seconds=1, connections=MANY)
        for connections in (1, MANY):
            # One connection to LiteLLM has too few answers in a round to say anything.
            asked = servers if connections == MANY else servers[: 2 * each]
            found = rounds(asked, count, seconds, connections=connections)
            for key in ("median_ms", "cpu_us"):
                old, new = found["before"][key], found["gateway"][key]
                ratio = f"{old:.4g} to {new:.4g}, {new / old:.3f}"
                print(f"{connections:3} connections, {key}: {ratio}")
            for name, told in found.items():
                each_costs = f"{told['rate']:.0f} requests/s, {told['cpu_us']:.0f} us each"
                print(f"{connections:3} connections, {name}: {each_costs}")
            if "litellm" in found:
                ratio = found["gateway"]["rate"] / found["litellm"]["rate"]
                print(f"{connections:3} connections: {ratio:.1f} times LiteLLM's throughput")


def machine() -> str:
    """Processor, cores, Python, and what uvicorn could use."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    cpu = next((x.split(":", 1)[1].strip() for x in info if x.startswith("model name")), "?")
    fast = [m for m in ("uvloop", "httptools") if importlib.util.find_spec(m) is not None]
    loads = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    return (
        f"{cpu}, {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"{' and '.join(fast) or 'neither uvloop nor httptools'}; load {loads} at the start; "
        f"{date.today().isoformat()}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument("--litellm", help="Python of an environment with litellm[proxy].")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--requests", type=int, default=100_000, help="For the memory.")
    parser.add_argument("--before", type=Path, help="`src` of another checkout.")
    parser.add_argument("--processes", type=int, default=1, help="Servers of each version.")
    parser.add_argument("--out", type=Path, help="Folder for RESULTS.json.")
    args = parser.parse_args()
    found: JSON = {"machine": machine()}
    if args.before is not None:
        compare_with(args.before, args.litellm, args.rounds, args.seconds, args.processes)
        return
    with ours("bare") as bare, ours("gateway") as gateway:
        both = [bare, gateway]
        load(bare, seconds=1, connections=MANY)
        load(gateway, seconds=1, connections=MANY)
        found["many"] = rounds(both, args.rounds, args.seconds, connections=MANY)
        found["one"] = rounds(both, args.rounds, args.seconds, connections=1)
        quarter = found["many"]["gateway"]["rate"] / 4
        found["quarter"] = rounds(
            both, args.rounds, args.seconds, connections=MANY, rate=round(quarter)
        )
        memory = [gateway.memory_mb()]
        for _ in range(4):
            load(gateway, seconds=600, connections=MANY, requests=args.requests // 4)
            memory.append(gateway.memory_mb())
        found["memory_mb"] = memory
    if args.litellm:
        with litellm(args.litellm) as proxy:
            load(proxy, seconds=3, connections=MANY)
            found["many"] |= rounds([proxy], args.rounds, args.seconds, connections=MANY)
            found["one"] |= rounds([proxy], args.rounds, args.seconds, connections=1)
            slow = max(4, round(found["many"]["litellm"]["rate"] / 4))
            # Few connections: uvicorn closes those that pause for five seconds.
            found["litellm_quarter"] = rounds(
                [proxy], args.rounds, args.seconds, connections=4, rate=slow
            )
    text = json.dumps(found, indent=2)
    print(text)
    print(verdict(found))
    if args.out is not None:
        Path(args.out, "RESULTS.json").write_text(text + "\n")


def verdict(found: JSON) -> str:
    """The bars, one a line."""
    lines: list[str] = []
    many = found["many"]
    if "litellm" in many:
        ratio = many["gateway"]["rate"] / many["litellm"]["rate"]
        lines.append(f"{MANY} connections: {ratio:.1f} times LiteLLM's throughput (bar 15)")
    for key, words in (("one", "one connection"), ("quarter", "a quarter of saturation")):
        added = found[key]["gateway"]["median_ms"] - found[key]["bare"]["median_ms"]
        lines.append(f"{words}: {added:+.3f} ms added at the median (bar 2)")
    memory = found["memory_mb"]
    lines.append(f"memory: {', '.join(f'{m:.0f}' for m in memory)} MB after each quarter")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
