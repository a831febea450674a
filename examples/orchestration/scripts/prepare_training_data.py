"""`python scripts/prepare_training_data.py --logs execution_logs/ --output training_data.json`.

The document's script: what succeeded in execution logs becomes a training set.
"""

import argparse
import sys
from pathlib import Path

from tutelage.errors import TutelageError
from tutelage.orchestration.data.prepare import write_training_set


def main() -> int:
    """Prepare, and print what became of the logs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--logs", nargs="+", required=True)
    parser.add_argument("--output", type=Path, default=Path("training_data.json"))
    parser.add_argument("--catalog", type=Path)
    given = parser.parse_args()
    try:
        counts, tools = write_training_set(given.logs, given.output, given.catalog)
    except TutelageError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    print("{executions} executions, {failed} of them failed".format(**counts))
    print(f"{counts['examples']} examples: {given.output}, with their tools in {tools}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
