"""`python test_real_api.py`, where the document has it; `scripts/test_real_api.py` does it."""

import runpy
from pathlib import Path

if __name__ == "__main__":
    runpy.run_path(str(Path(__file__).parent / "scripts" / "test_real_api.py"), run_name="__main__")
