"""The device is the bundle's: what a site sends and keeps does not depend on it, and lies on the CPU."""

import subprocess
import sys
from pathlib import Path

# together all parts that keep tensors, draw, or make passes of their own
METHODS = (
    "fedrdn+fedalign+fedprox:mu=0.1+scaffold+moon+mixup+stochdepth",
    "fedfa+gradaug:n=1+fedbn+fednova",
    "hbn+fedmix+harmofl:amplitude=off",
    "fedwon+harmofl:alpha=0",
)


def test_another_device_gives_the_same_bits_on_the_cpu(image_bundle: Path, image_study: Path) -> None:
    """On a device whose tensors mix with no others: no error, the same messages and private state, all on the CPU."""
    script = Path(__file__).parent.parent / "second_device.py"
    call = [sys.executable, str(script), str(image_bundle), str(image_study / "A"), *METHODS]
    done = subprocess.run(call, capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == [f"{text} same cpu" for text in METHODS], done.stderr[-2000:]
