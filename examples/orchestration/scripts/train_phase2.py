"""`python scripts/train_phase2.py --config config.yaml --checkpoint checkpoints/phase1_best.pth
--output_dir checkpoints/ --episodes 1000`.

The document's script: a thin caller of `tutelage.orchestration.routing.phase2.train_phase2`. It
leaves `checkpoint_best.pth` (which carries the planner of phase 1 along) and prints the comparison
of all routers, on simulated outcomes. `--resume` goes on after a kill.
"""

import argparse
import sys

from tutelage.errors import TutelageError
from tutelage.orchestration.evaluation.tables import routing_tables
from tutelage.orchestration.planner.settings import read_settings
from tutelage.orchestration.routing.phase2 import train_phase2
from tutelage.runs.signals import exit_code, handle_signals


def main() -> int:
    """Train, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", default="config.yaml")
    parser.add_argument("--checkpoint", help="phase 1's, or an earlier one of phase 2")
    parser.add_argument("--output_dir", default="checkpoints/")
    parser.add_argument("--episodes", type=int)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--resume", action="store_true")
    given = parser.parse_args()
    overrides = {} if given.episodes is None else {
        "training.phase2_rl.num_episodes": given.episodes
    }  # fmt: skip
    try:
        result = train_phase2(
            given.output_dir,
            settings=read_settings(given.config, overrides).phase2_rl,
            seed=given.seed,
            checkpoint=given.checkpoint,
            resume=given.resume,
            log=show,
            warn=lambda message: print(f"warning: {message}", file=sys.stderr),
        )
    except TutelageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as stopped:
        print("Stopped. Run it again with --resume to go on.", file=sys.stderr)
        return exit_code(stopped)
    for table in routing_tables(result.evaluation.to_json()):
        print(f"\n{table.title}. {table.lead}")
        for cells in (table.columns, *(row.cells for row in table.rows)):
            print("  ".join(f"{cell:<20.20}" for cell in cells))
    print(f"router: {result.checkpoint}")
    return 0


def show(line) -> None:
    """A validation on one line."""
    if "val_reward" in line:
        print(f"update {line['step']:4d}  validation reward {line['val_reward']:.3f}", flush=True)


if __name__ == "__main__":
    handle_signals()  # SIGTERM and SIGHUP save and end like Ctrl-C
    raise SystemExit(main())
