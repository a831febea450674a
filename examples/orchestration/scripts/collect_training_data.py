"""`python scripts/collect_training_data.py --num_executions 200 --output_dir execution_logs/`.

The document's script: diverse instructions are executed and logged to JSONL, with simulated workers
unless `--pool openai --workers FILE` names real ones, which cost money.
"""

import argparse
import sys

from tutelage.errors import TutelageError
from tutelage.orchestration.data.collect import CollectConfig, run_collection
from tutelage.runs.signals import exit_code, handle_signals


def main() -> int:
    """Collect, with a line for every tenth of the instructions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--num_executions", type=int, default=200)
    parser.add_argument("--output_dir", default="execution_logs/")
    parser.add_argument("--pool", choices=["simulated", "openai"])
    parser.add_argument("--workers", help="workers as JSON or YAML")
    parser.add_argument("--budget", type=float, help="US dollars of one execution")
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    count, done = options["num_executions"], 0

    def progress(_: object) -> None:
        nonlocal done
        done += 1
        if done % max(1, count // 10) == 0:
            print(f"{done} of {count} instructions", file=sys.stderr, flush=True)

    try:
        found, log, _ = run_collection(
            CollectConfig.model_validate(options),
            on_start=lambda text: print(text, file=sys.stderr),
            on_done=progress,
        )
    except TutelageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt as stopped:
        print(f"What ended is in {options['output_dir']}", file=sys.stderr)
        return exit_code(stopped)
    print("{succeeded} of {executions} succeeded, {cost:.6f} USD".format(**found) + f": {log}")
    return 0


if __name__ == "__main__":
    handle_signals()  # SIGTERM and SIGHUP end it like Ctrl-C
    sys.exit(main())
