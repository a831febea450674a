"""What the peers share: a plain client of the simulator, its data, ceilings, and the result line.

Runs in each peer's own environment, so it imports the standard library and the worlds alone. Every
search has a key of its own, by which the server counts. The ceilings are the same for all; a peer
that has a budget of its own is given it, and what it overshoots is counted and published.
"""

from __future__ import annotations

import argparse
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from benchmarks.prompt.worlds import Grade, World, world

TRAIN, VAL = 40, 24


class Spent(Exception):
    """A ceiling is reached; the search ends and keeps its best."""


class Client:
    """Chat completions under two ceilings; a connection a thread."""

    def __init__(self, url: str, key: str, rollouts: int, calls: int) -> None:
        parts = urlsplit(url)
        self._host, self._port, self._path = parts.hostname or "", parts.port, parts.path
        self.key = key
        self._local = threading.local()
        self.rollouts_left, self.calls_left = rollouts, calls
        self.lock = threading.Lock()

    def task(self, prompt: str, question: str) -> str:
        """One rollout: the task model's reply."""
        with self.lock:
            self.rollouts_left -= 1
        messages = [{"role": "system", "content": prompt}, {"role": "user", "content": question}]
        return self.chat("simulator-task", messages)

    def optimiser(self, messages: list[dict[str, Any]], **more: Any) -> str:
        """One call of the optimiser model. Raises `Spent` at the ceiling."""
        with self.lock:
            if self.calls_left < 1:
                raise Spent
            self.calls_left -= 1
        return self.chat("simulator-optimiser", messages, **more)

    def chat(self, model: str, messages: list[dict[str, Any]], **more: Any) -> str:
        """The text of a reply."""
        body = json.dumps({"model": model, "messages": messages, **more})
        headers = {"content-type": "application/json", "authorization": f"Bearer {self.key}"}
        try:
            answer, text = self._post(body, headers)
        except (BrokenPipeError, ConnectionError, http.client.RemoteDisconnected):
            # The server closed an idle connection before it read this.
            self._local.line = None
            answer, text = self._post(body, headers)
        if answer.status != 200:
            raise RuntimeError(f"{answer.status}: {text!r}")
        return json.loads(text)["choices"][0]["message"]["content"]

    def _post(self, body: str, headers: dict[str, str]) -> tuple[http.client.HTTPResponse, bytes]:
        line = getattr(self._local, "line", None)
        if line is None:
            line = self._local.line = http.client.HTTPConnection(self._host, self._port)
        line.request("POST", f"{self._path}/chat/completions", body, headers)
        answer = line.getresponse()
        return answer, answer.read()


def data(here: World, seed: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Training and validation tasks of a seed, the same for every method."""
    train = [here.task(f"train-{seed}", i) for i in range(TRAIN)]
    return train, [here.task(f"val-{seed}", i) for i in range(VAL)]


def graded(here: World, client: Client, prompt: str, task: Mapping[str, Any]) -> tuple[str, Grade]:
    """One rollout with its grade."""
    reply = client.task(prompt, task["question"])
    return reply, here.grade(task, reply)


Search = Callable[[World, Client, int, argparse.Namespace], str]


def main(name: str, search: Search, add: Callable[[Any], object] = lambda parser: None) -> None:
    """Searches for the seeds asked for; one JSON line each, with the prompt that was found."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--world", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", required=True)
    parser.add_argument("--rollouts", type=int, required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--name", default=name)
    add(parser)
    given = parser.parse_args()
    for seed in given.seeds:
        key = f"{given.name}/{given.rollouts}/{seed}"
        client = Client(given.url, key, given.rollouts, given.calls)
        began, cpu = time.perf_counter(), time.process_time()
        prompt = search(world(given.world), client, seed, given)
        line = {
            "method": given.name,
            "seed": seed,
            "key": key,
            "prompt": prompt,
            "seconds": round(time.perf_counter() - began, 3),
            "cpu_seconds": round(time.process_time() - cpu, 3),
        }
        print("RESULT " + json.dumps(line), flush=True)
