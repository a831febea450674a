"""`python scripts/train_phase1.py --config config.yaml --data training_data.json --output_dir
checkpoints/ [--epochs 50] [--batch_size 32]`.

The document's script: a thin caller of `tutelage train planner --phase 1`. `phase1_best.pth` and
`checkpoint_best.pth` are put into the output folder, the whole run with its report below it in
`phase1/`.
"""

import argparse
import shutil
import sys
from pathlib import Path

from tutelage.cli import main

NAMES = ("phase1_best.pth", "checkpoint_best.pth")


def run() -> int:
    """Train, then put the checkpoints where the document expects them."""
    parser = argparse.ArgumentParser(description="Phase 1: supervised pre-training.")
    parser.add_argument("--config", help="keys in YAML")
    parser.add_argument("--data", help="training set; without it synthetic workflows")
    parser.add_argument("--output_dir", default="checkpoints/")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch_size", type=int)
    given, rest = parser.parse_known_args()
    place = Path(given.output_dir)
    arguments = ["train", "planner", "--phase", "1", "--output", str(place / "phase1"), *rest]
    for option, value in (
        ("--config", given.config),
        ("--train", given.data),
        ("--epochs", given.epochs),
        ("--batch-size", given.batch_size),
    ):
        if value is not None:
            arguments += [option, str(value)]
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as ended:
        if ended.code not in (None, 0):
            return int(ended.code) if isinstance(ended.code, int) else 1
    for name in NAMES:
        shutil.copyfile(place / "phase1" / "checkpoints" / name, place / name)
    return 0


if __name__ == "__main__":
    sys.exit(run())
