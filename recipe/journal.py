"""The run's log: a progress line, a CSV of points and a picture of the loss.

Owns `run.log`, `loss.csv` and `loss.png` of a run's folder. Promises that every line is on disk when the call
returns, so a killed run still yields its figures. Knows nothing about what the numbers mean.
"""

import csv
import math
import time
from pathlib import Path

from PIL import Image, ImageDraw


class Journal:
    """Appends to the files of one run; the clock starts with the object."""

    def __init__(self, folder: Path, prefix: str = "") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.prefix, self.began = folder, prefix, time.monotonic()
        self.columns: list[str] | None = None

    @property
    def seconds(self) -> float:
        """Seconds since the journal was opened."""
        return time.monotonic() - self.began

    def say(self, text: str) -> None:
        """A line for people, printed and kept."""
        line = f"[{self.seconds:7.1f} s] {self.prefix}{text}"
        print(line, flush=True)
        with (self.folder / "run.log").open("a") as file:
            file.write(line + "\n")

    def point(self, step: int, figures: dict[str, float], name: str = "loss") -> None:
        """One row of `NAME.csv` and the same as a progress line."""
        path = self.folder / f"{name}.csv"
        fresh = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file)
            if fresh:
                writer.writerow(["step", "seconds", *figures])
            writer.writerow([step, round(self.seconds, 2), *(f"{v:.6g}" for v in figures.values())])
        self.say(f"step {step}  " + "  ".join(f"{k} {v:.4g}" for k, v in figures.items()))


def draw_curve(source: Path, target: Path, column: str = "loss") -> None:
    """A PNG of one column of a points file, logarithmic, over the steps."""
    with source.open() as file:
        rows = [(float(row["step"]), float(row[column])) for row in csv.DictReader(file)]
    rows = [(step, value) for step, value in rows if value > 0]
    if len(rows) < 2:
        return
    width, height, edge = 800, 420, 50
    image = Image.new("RGB", (width, height), "white")
    pen = ImageDraw.Draw(image)
    low = math.floor(math.log10(min(v for _, v in rows)))
    high = max(math.ceil(math.log10(max(v for _, v in rows))), low + 1)
    last = rows[-1][0]

    def place(step: float, value: float) -> tuple[float, float]:
        along = (math.log10(value) - low) / (high - low)
        return edge + (width - 2 * edge) * step / last, height - edge - (height - 2 * edge) * along

    for power in range(low, high + 1):
        y = place(0, 10.0**power)[1]
        pen.line((edge, y, width - edge, y), fill="#dddddd")
        pen.text((8, y - 6), f"1e{power}", fill="black")
    for part in range(5):
        step = last * part / 4
        pen.text((place(step, 10.0**low)[0] - 12, height - edge + 8), f"{step:.0f}", fill="black")
    pen.text((edge, 16), f"{column} over steps", fill="black")
    pen.line([place(*row) for row in rows], fill="#1f5fbf", width=2)
    image.save(target)
