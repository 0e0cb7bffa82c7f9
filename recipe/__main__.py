"""`python -m recipe --out DIR`: the whole recipe as one command.

Owns the command line. Promises that the defaults are the plan of the bundled model. Refuses to decide anything else.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from recipe.deepseek_run import SightRun, sight_parts, sight_plan
from recipe.packs import PackShape
from recipe.run import Run, RunPlan
from recipe.shapes import preset
from recipe.train import TrainPlan
from recipe.train_draft import DraftPlan


def toy_packs() -> PackShape:
    """Packs that a CPU can step through."""
    return PackShape(rows=4, row=1536, patches=6144, labels=1024, images=96, segments=96)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m recipe", description="Train the bundled chart reader.")
    parser.add_argument("--out", type=Path, required=True, help="folder of the run; started again, it goes on")
    parser.add_argument("--family", default="qwen3_5", choices=("qwen3_5", "deepseek_v4"), help="demo, or demo-ds4")
    parser.add_argument("--shape", default="chart", choices=("chart", "third", "toy"), help="dimensions (toy: a CPU)")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and data")
    parser.add_argument("--steps", type=int, default=TrainPlan.steps, help="training steps of the model")
    parser.add_argument("--draft-steps", type=int, default=DraftPlan.steps, help="training steps of the drafters")
    parser.add_argument("--seconds", type=float, default=0.0, help="limit on the model's training (0: none)")
    parser.add_argument("--draft-seconds", type=float, default=0.0, help="limit on the drafters' training (0: none)")
    parser.add_argument("--lr", type=float, default=TrainPlan.lr, help="learning rate of the matrices")
    parser.add_argument("--workers", type=int, default=15, help="processes that draw charts")
    parser.add_argument("--uses", type=int, default=2, choices=(1, 2), help="how often a pack is trained on")
    parser.add_argument("--spell", action="store_true", help="a tokenizer that spells a chart's own words")
    parser.add_argument("--start", type=Path, help="a checkpoint folder to begin from")
    parser.add_argument("--device", default="cuda", help="cuda or cpu")
    parser.add_argument("--dense-attention", action="store_true", help="deepseek_v4: no flex attention on a GPU")
    parser.add_argument("--no-compile", action="store_true", help="leave torch.compile out")
    return parser.parse_args()


def run_of(args: argparse.Namespace) -> Run:
    """The run that the command line describes."""
    speed, sight = not args.no_compile, args.family == "deepseek_v4"
    train = TrainPlan(steps=args.steps, seed=args.seed, lr=args.lr, seconds=args.seconds, compile=speed)
    draft = DraftPlan(steps=args.draft_steps, seconds=args.draft_seconds, compile=speed)
    toy = args.shape == "toy"
    shape: Any
    shape, packs = sight_parts(args.shape) if sight else (preset(args.shape), toy_packs() if toy else PackShape())
    plan = RunPlan(args.out, shape, packs, train, draft, workers=args.workers, uses=args.uses)
    plan = replace(plan, device=args.device, spell=args.spell, start=args.start)
    if toy:
        small = replace(train, save_every=10, log_every=2, warmup=2)
        plan = replace(plan, train=small, draft=replace(draft, blocks=8, log_every=2), lag=2, held_out=1, texts=80)
    if not sight:
        return Run(plan)
    run = SightRun(sight_plan(plan))
    run.flex = False if args.dense_attention else None
    return run


def main() -> None:
    """Run the recipe."""
    args = parse()
    if args.family == "deepseek_v4" and (args.start is not None or args.shape == "third"):
        raise SystemExit("--start and --shape third belong to the family qwen3_5")
    run_of(args).all()


if __name__ == "__main__":
    main()
