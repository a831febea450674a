"""`python scripts/prepare_training_data.py --logs execution_logs/ --output training_data.json`.

The document's script: it is `tutelage orchestrate prepare`, with all its options.
"""

import sys

from tutelage.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["orchestrate", "prepare"]
    main()
