"""What the notebooks share: findings, the tables that answer their questions, their pictures.

A notebook runs in its own folder, so ``helpers`` is found there; ``tools`` lies beside that folder.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2]))
