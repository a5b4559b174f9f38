"""Run ``python -m gatherbench``, the same program as the console script."""

from gatherbench.bench.cli import main

if __name__ == "__main__":
    main()
