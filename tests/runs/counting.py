"""A kind of run as a user writes one, in one file outside of the package: it counts.

Each step adds one, and is saved; a count is what it was asked for with its number of steps.
`python counting.py FOLDER` runs it, and typed again it goes on after a stop.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from tutelage.config.fields import RunSettings
from tutelage.runs.folder import RunFolder, trim_lines, write_json
from tutelage.runs.kinds import Phase, RunHeader, RunKind, load_settings, register
from tutelage.runs.lifecycle import Run, start
from tutelage.runs.progress import Progress
from tutelage.types import JSON


def saved(folder: RunFolder) -> Path:
    return folder.checkpoints / "count.json"


class CountingSettings(RunSettings):
    steps: int
    """How far it counts."""
    pace: float = 0.0
    """Seconds of each step."""


@register
@dataclass
class Counting(RunKind):
    name: ClassVar[str] = "counting"
    model: ClassVar[type[RunSettings]] = CountingSettings
    finishes_step: ClassVar[bool] = True

    asked: CountingSettings
    count: int = 0

    @classmethod
    def read(cls, folder: RunFolder, progress: Progress) -> Self:
        return cls(load_settings(folder, CountingSettings))

    @classmethod
    def report(cls, folder: RunFolder) -> None:
        folder.report.write_text("<p>counted</p>")

    def prepare(self, folder: RunFolder, progress: Progress) -> None:
        if saved(folder).is_file():
            self.count = json.loads(saved(folder).read_text())["count"]
        trim_lines(folder.metrics, self.count)  # a kill may fall between a line and its checkpoint

    @property
    def head(self) -> RunHeader:
        return RunHeader(recipe="counting", algorithm="plus one", settings=self.asked)

    def open(self, run: Run) -> None:
        run.progress.start("counting", {"from": str(self.count)})

    def phases(self) -> Sequence[Phase]:
        return [("count", self._count)]

    def _count(self, run: Run) -> None:
        run.progress.phase("count", steps=self.asked.steps)
        while self.count < self.asked.steps:
            time.sleep(self.asked.pace)
            self.count += 1
            run.log({"phase": "count", "step": self.count, "value": self.count / self.asked.steps})
            write_json(saved(run.folder), {"count": self.count})
            run.progress.step(self.count, {"value": float(self.count)})
            if run.stop.asked:
                raise run.stop.to_exception()

    def result(self, status: str) -> JSON:
        return {"status": status, "seed": 0, "count": self.count}


if __name__ == "__main__":
    asked = CountingSettings(steps=100, pace=0.1)
    try:
        print(start(Counting(asked), RunFolder(Path(sys.argv[1])), Progress()))
    except KeyboardInterrupt:  # Ctrl-C or SIGTERM
        sys.exit("Stopped; all is saved. Run it again to continue.")
