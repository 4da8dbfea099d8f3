"""Print which pairs of methods compose: each is run for two rounds on two small sites of images.

python tests/benchmarks/compositions.py [--all]
"""

import argparse
import sys
import tempfile
import warnings
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS))

from compositions import LOCAL, OTHERS, tried  # noqa: E402  beside the tests, which are no package
from laws import FEDERATED, make_labs  # noqa: E402

from monai_fedskew.data.synthetic_images import write_synthetic_images  # noqa: E402
from monai_fedskew.sites.bundle import BundleSite  # noqa: E402


def main(rows: list[str], columns: list[str]) -> None:
    """Print the matrix, then the reasons."""
    reasons: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a method alone on tiny data may warn; here only composing counts
        data = write_synthetic_images(Path(folder) / "images", sites=("A", "B"), images=32)
        labs = make_labs({}, {s: BundleSite(TESTS / "image_bundle", s, data / s) for s in ("A", "B")})
        wide, cell = max(map(len, rows)) + 2, max(map(len, columns)) + 2
        print(" " * wide + "".join(f"{name:>{cell}}" for name in columns))
        for first in rows:
            line = f"{first:<{wide}}"
            for second in columns:
                reason = "itself" if first == second else tried(*sorted((first, second)), labs)
                number = ""
                if reason and first != second:
                    reasons.setdefault(reason.partition(": ")[2], []).append(f"{first}+{second}")
                    number = f"no ({list(reasons).index(reason.partition(': ')[2]) + 1})"
                line += f"{'-' if first == second else number or 'runs':>{cell}}"
            print(line, flush=True)
    for number, (reason, pairs) in enumerate(reasons.items(), 1):
        print(f"({number}) {', '.join(pairs)}: {reason}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="every federated method with every other")
    everything = parser.parse_args().all
    main(*((FEDERATED, FEDERATED) if everything else (list(LOCAL), list(OTHERS))))
