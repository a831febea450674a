"""`python scripts/collect_training_data.py --num_executions 200 --output_dir execution_logs/`.

The document's script: it is `tutelage orchestrate collect`, with all its options.
"""

import sys

from tutelage.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["orchestrate", "collect"]
    main()
