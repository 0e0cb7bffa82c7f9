"""Speculation changes no answer: the bundled questions with and without a drafter, answer by answer.

One plain run of each set, then every drafter, shape of guess and batch size against it, through `foveate eval charts`
in fresh processes. Ends with one JSON line; --out keeps it. Several hours on two slow cores, minutes on many.

    python bench/identity.py --out bench/results/identity.json
"""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

TREE = 24
ARMS = {
    "dflash chain": ["--draft", "auto"],
    "dflash tree": ["--draft", "auto", "--draft-tree", str(TREE)],
    "mtp": ["--draft", "mtp"],
    "ngram": ["--draft", "ngram"],
}
BATCHES = {"dflash chain": (1, 2, 4), "dflash tree": (1, 2, 4), "mtp": (4,), "ngram": (4,)}


def ask(model: str, questions: str, batch: int, more: list[str]) -> dict[str, Any]:
    """The JSON line of one `foveate eval charts` run at `batch` requests at once."""
    command = [sys.executable, "-m", "foveate.cli", "eval", "charts", model, "--set", questions]
    command += ["--mmproj-device", "same", "--concurrency", str(batch), "--max-concurrency", str(batch), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    except (IndexError, ValueError):
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stderr[-2000:]}") from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="demo")
    parser.add_argument("--sets", nargs="+", default=["descriptions", "charts"])
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    threads = ["--threads", str(args.threads)] if args.threads else []
    rows: list[dict[str, Any]] = []
    for questions in args.sets:
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "plain.jsonl"
            first = ask(args.model, questions, 4, [*threads, "--draft", "none", "--out", str(plain)])
            rows.append({"set": questions, "draft": "none", "batch": 4, **first})
            keep(args.out, rows)
            for arm, options in ARMS.items():
                for batch in BATCHES[arm]:
                    told = ask(args.model, questions, batch, [*threads, *options, "--against", str(plain)])
                    rows.append({"set": questions, "draft": arm, "batch": batch, **told})
                    print(
                        questions, arm, batch, told["identical"], "of", told["questions"], file=sys.stderr, flush=True
                    )
                    keep(args.out, rows)
    compared = [row for row in rows if "identical" in row]
    line = {"compared": len(compared), "all_identical": all(r["identical"] == r["questions"] for r in compared)}
    print(json.dumps(line))


def keep(path: Path | None, rows: list[dict[str, Any]]) -> None:
    if path is not None:
        record = {"command": " ".join(["python", *sys.argv]), "machine": platform.machine(), "tree": TREE, "rows": rows}
        path.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
