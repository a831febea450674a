"""GAIA from a local folder: its questions, their attached files, and task files to train on.

GAIA (Mialon et al. 2023) is a gated dataset, so its user downloads the folder; README.md says
how. A split is a folder with `metadata.jsonl` or `metadata.parquet` (or one such file a level) and
the attached files beside it. Answers of the test split are not public (`?`), so only rows with an
answer can be trained or measured on. `gaia_tools.py` has the tools, `gaia_reward.py` the reward.

    python examples/gaia/gaia.py FOLDER --output tasks
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tutelage import Dataset, TutelageError
from tutelage.errors import DataError
from tutelage.files import write_files
from tutelage.tasks.readers import RawRow, read_rows

HOW = """\
GAIA is gated: accept its terms at https://huggingface.co/datasets/gaia-benchmark/GAIA, then

    pip install huggingface_hub
    hf auth login
    hf download gaia-benchmark/GAIA --repo-type dataset --local-dir GAIA

and name the folder GAIA, or GAIA/2023/validation."""
SUFFIXES = (".jsonl", ".parquet")
UNKNOWN = "?"
"""What stands for the answer where it is not public."""


def metadata_files(folder: str | Path) -> list[Path]:
    """The metadata of a split: one file, or one for each level where there is no whole one.

    `folder` may also be the download itself; its `2023/validation` is meant then. Raises
    `DataError` that says how to get the data.
    """
    root = Path(folder).expanduser()
    for place in (root, root / "2023" / "validation", root / "validation"):
        found = sorted(p for p in place.glob("metadata*") if p.suffix in SUFFIXES)
        whole = [p for p in found if p.stem == "metadata"]
        if found:
            kept = whole or found
            formats = {p.suffix for p in kept}
            # A download may hold the same rows in both formats.
            return [p for p in kept if p.suffix == SUFFIXES[0] or SUFFIXES[0] not in formats]
    raise DataError(f"{str(folder)!r} has no metadata*.jsonl or metadata*.parquet.\n{HOW}")


def load(folder: str | Path, levels: Iterable[int] = (1, 2, 3)) -> Dataset[Any]:
    """The questions of some levels that have a public answer.

    A task has `id`, `question`, `answer`, `level`, `file_name` and `file`, the attached file's path
    (both empty if there is none). Raises `DataError` for a row without its fields, for a file
    that is not there, and when nothing is left.
    """
    wanted = {*levels}
    paths = metadata_files(folder)
    rows = [(path.parent, row) for path in paths for row in read_rows(path)]
    tasks = [task for place, row in rows if (task := _task(place, row))["level"] in wanted]
    known = [task for task in tasks if task["answer"] != UNKNOWN]
    if not known:
        raise DataError(
            f"{str(paths[0].parent)!r} has {len(tasks)} questions of the levels "
            f"{sorted(wanted)!r}, none with a public answer; the answers of GAIA's test split are "
            "secret, take 2023/validation"
        )
    return Dataset(known, name="gaia")


def _task(folder: Path, row: RawRow) -> dict[str, Any]:
    if not isinstance(row.value, Mapping):
        raise DataError(f"{row.place}: expected an object, found {type(row.value).__name__}")
    missing = [n for n in ("task_id", "Question", "Level", "Final answer") if n not in row.value]
    if missing:
        raise DataError(f"{row.place}: no field {missing[0]!r}, so this is no metadata of GAIA")
    name = str(row.value.get("file_name") or "")
    return {
        "id": str(row.value["task_id"]),
        "question": _question(str(row.value["Question"]), name),
        "answer": str(row.value["Final answer"]),
        "level": _level(row),
        "file_name": name,
        "file": str(_attached(folder, name, row.place)) if name else "",
    }


def _level(row: RawRow) -> int:
    """A number in one format, a text in the other."""
    try:
        return int(row.value["Level"])
    except (TypeError, ValueError) as error:
        raise DataError(f"{row.place}: Level {row.value['Level']!r} is no number") from error


def _question(text: str, name: str) -> str:
    attached = f"\nAttached file: {name}" if name else ""
    return f"{text}{attached}"


def _attached(folder: Path, name: str, place: str) -> Path:
    """The path of an attached file, which lies in the split's folder."""
    # The file itself may be a link out of it: that is how a download's cache is laid out.
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise DataError(f"{place}: file_name {name!r} leads out of {str(folder)!r}")
    path = folder.absolute() / name
    if not path.is_file():
        raise DataError(f"{place}: the attached file {name!r} is not in {str(folder)!r}.\n{HOW}")
    return path


def write(folder: str | Path, output: Path, levels: Iterable[int], val_share: float) -> list[Path]:
    """Write train.jsonl and val.jsonl, split by a seed, and return their paths."""
    val, train = load(folder, levels).split(val_share, seed=0)
    output.mkdir(parents=True, exist_ok=True)
    paths: list[Path] = []
    for name, part in (("train", train), ("val", val)):
        lines = (json.dumps({"id": t.id, **t.fields}) + "\n" for t in part)
        paths.append(output / f"{name}.jsonl")
        write_files({paths[-1]: "".join(lines)}, "output folder")
    return paths


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; 0 when the files were written."""
    parser = argparse.ArgumentParser(description="Make task files of a downloaded GAIA.")
    parser.add_argument("folder", help="the download, or one split of it")
    parser.add_argument("--output", type=Path, default=Path("tasks"))
    parser.add_argument("--levels", type=int, nargs="+", choices=(1, 2, 3), default=(1, 2, 3))
    parser.add_argument("--val-share", type=float, default=0.3)
    args = parser.parse_args(argv)
    try:
        paths = write(args.folder, args.output, args.levels, args.val_share)
    except TutelageError as error:
        print(error, file=sys.stderr)
        return 1
    print(*paths, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
