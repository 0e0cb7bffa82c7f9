"""The command line: serve, ask, chat, demo, bench, eval.

Owns words in and words out at a terminal. Flags of every command that opens an engine are generated from the fields and
help texts of `core.config.Settings`, so that there is one place for defaults. Imports lazily, so that `--help` answers
at once; nothing imports this module.
"""

from __future__ import annotations

import functools
import inspect
import json
import logging
import sys
from collections.abc import Callable
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from foveate.core.config import Settings, words
from foveate.core.errors import ConfigError, FoveateError

LOG_LEVELS = ("debug", "info", "warning", "error")
SUMMARY = "An inference server for vision-language models that streams each image into prefill."


def _say(default: Any, text: str, **extra: Any) -> Any:
    return field(default=default, metadata={"help": text, **extra})


Model = Annotated[str, typer.Argument(help="demo, demo-ds4, a checkpoint folder, or a hub id OWNER/NAME.")]


def with_flags(command: Callable[..., Any], **groups: type) -> Callable[..., Any]:
    """Give a command one flag per field of each dataclass in `groups`; it receives their filled instances by name.

    Errors of foveate end the command with their message and exit code 1 instead of a traceback.
    """
    own = [p for p in inspect.signature(command, eval_str=True).parameters.values() if p.name not in groups]
    flags = [_flag(f, get_type_hints(group)[f.name]) for group in groups.values() for f in fields(group)]
    names = [flag.name for flag in (*own, *flags)]
    assert len(names) == len(set(names)), "two flags of one name"

    @functools.wraps(command)
    def run(**values: Any) -> None:
        filled = {name: group(**{f.name: values.pop(f.name) for f in fields(group)}) for name, group in groups.items()}
        try:
            command(**values, **filled)
        except FoveateError as error:
            typer.secho(f"foveate: {error.message}", fg="red", err=True)
            raise typer.Exit(1) from error

    run.__signature__ = inspect.Signature([*own, *flags])  # type: ignore[attr-defined]
    return run


def _flag(f: Field[Any], kind: Any) -> inspect.Parameter:
    words = [f"--{f.metadata.get('flag', f.name).replace('_', '-')}"]
    if kind is bool:
        words[0] += f"/--no-{f.name.replace('_', '-')}"
    if "alias" in f.metadata:
        words.append(f"--{f.metadata['alias']}")
    option = typer.Option(*words, help=f.metadata["help"])
    return inspect.Parameter(
        f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=Annotated[kind, option]
    )


def serve(
    model: Model,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show the resolved configuration and end.")
    ] = False,
    *,
    settings: Settings,
) -> None:
    """Serve a model over HTTP."""
    if print_config:
        from foveate.engine.build import read_model

        typer.echo(json.dumps(read_model(model, settings)[2].as_dict(), indent=2))
        return
    import asyncio

    from foveate.core.config import api_keys
    from foveate.server.app import create_app
    from foveate.server.run import serve as run_server
    from foveate.show.streams import make_standard_streams_unfailing

    make_standard_streams_unfailing()
    keys = api_keys(settings)  # a file that cannot be read is told before the weights are loaded
    _log_to_stderr(settings.log_level)
    service = _open_service(model, settings)
    logging.getLogger("foveate").info("configuration: %s", json.dumps(service.engine.config.as_dict()))
    try:
        run_server(
            create_app(service, settings, keys=keys),
            service,
            host=settings.host,
            port=settings.port,
            shutdown_s=settings.shutdown_s,
            announce=lambda url: typer.echo(f"foveate serves {service.name} at {url}"),
        )
    finally:
        asyncio.run(service.aclose())


def ask(
    model: Model,
    question: Annotated[str, typer.Argument(help="What to ask.")],
    images: Annotated[
        list[Path] | None, typer.Argument(help="Pictures, in order.", exists=True, dir_okay=False)
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.", min=1)] = 512,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0.0)] = 0.0,
    *,
    settings: Settings,
) -> None:
    """Ask one question about pictures, stream the answer, print the timeline."""
    from foveate.show.talk import ask_once

    ask_once(_open_service(model, settings), question, images or [], max_tokens, temperature)


def chat(
    model: Model,
    max_tokens: Annotated[int, typer.Option(help="Longest answer, in tokens.", min=1)] = 512,
    temperature: Annotated[float, typer.Option(help="0 is greedy.", min=0.0)] = 0.0,
    *,
    settings: Settings,
) -> None:
    """Talk with a model; /image PATH adds a picture to the next message, /new starts over, /quit ends."""
    from foveate.show.talk import converse

    converse(_open_service(model, settings), max_tokens, temperature)


def demo(
    port: Annotated[int, typer.Option(help="Port for the server; 0 takes a free one.")] = 0,
) -> None:
    """Start a server on the bundled model, ask it about the bundled charts, compare and show the timeline."""
    from foveate.show.demo import run

    raise typer.Exit(run(port))


@dataclass(frozen=True, slots=True)
class BenchFlags:
    """Whom a benchmark asks."""

    url: str = _say("", "Ask a running server (of any make) instead of opening the model here.")
    key: str = _say("", "API key of that server.")
    gpu: str = _say("", "Whose peaks the floor counts with: H200, H100, ...; empty takes the GPU found here.")


def _subject(model: str, options: BenchFlags, settings: Settings) -> Any:
    from foveate.bench.arms import Subject

    if not model and not options.url:
        raise typer.BadParameter("name a model, or a server with --url")
    return Subject(model, settings, options.url, options.key, options.gpu)


def _need_ones(*numbers: int) -> None:
    if min(numbers, default=0) < 1:
        raise typer.BadParameter("all numbers of a bench are at least 1, and tokens of an answer that decodes 2")


def _numbers(text: str) -> tuple[int, ...]:
    try:
        numbers = tuple(int(word) for word in text.split(",") if word)
    except ValueError:
        numbers = ()
    if not numbers:
        raise typer.BadParameter(f"{text!r}: numbers with commas between them")
    return numbers


@dataclass(frozen=True, slots=True)
class TtftFlags:
    """What `bench ttft` can be told."""

    ladder: str = _say("1,4,8,16", "Numbers of images to measure.")
    repeats: int = _say(3, "Measured rounds per number, after one warm-up.")
    pictures: str = _say("charts", "charts (850x600; the bundled model's: 640x448) or screenshots (1920x1080).")
    size: str = _say("", "Another size of the pictures, WIDTHxHEIGHT.")
    arms: str = _say("", "Placements to measure, with commas; empty takes all that this machine has.")
    beside: bool = _say(True, "All arms open at once, in turn; off: one after another.")
    tokens: int = _say(1, "Tokens of each answer; with more of them answers that are alike say more.")


def bench_ttft(model: Model = "", *, plan: TtftFlags, options: BenchFlags, settings: Settings) -> None:
    """Time to first token by where the encoder is, or of a server; ends with one JSON line."""
    from foveate.bench.ttft import Plan, run

    ladder, arms = _numbers(plan.ladder), words(plan.arms)
    _need_ones(*ladder, plan.repeats, plan.tokens)
    bundled = plan.pictures == "charts" and not options.url and model in ("", "demo")
    size = plan.size or ("640x448" if bundled else "")
    asked = Plan(ladder, plan.repeats, plan.pictures, size, arms, plan.beside, plan.tokens)
    typer.echo(run(_subject(model, options, settings), asked))


@dataclass(frozen=True, slots=True)
class DecodeFlags:
    """What `bench decode` can be told."""

    workload: str = _say(
        "descriptions", "descriptions (bundled charts, plain and speculative), text, charts or screenshots."
    )
    count: int = _say(24, "Descriptions per batch size, 100 at most.")
    batches: str = _say("1,8", "Requests that run at once.")
    max_tokens: int = _say(128, "Longest answer, in tokens; of the other workloads the length of each.")
    repeats: int = _say(3, "Measured rounds of the other workloads, after one warm-up.")


def bench_decode(model: Model = "", *, plan: DecodeFlags, options: BenchFlags, settings: Settings) -> None:
    """Tokens a second: descriptions plain and speculative side by side, or a fixed load; ends with one JSON line."""
    from foveate.bench import decode, rates

    batches = _numbers(plan.batches)
    _need_ones(*batches, plan.repeats, plan.count, plan.max_tokens - 1)
    if plan.workload == "descriptions" and not options.url:
        typer.echo(decode.run(model or "demo", settings, decode.Plan(plan.count, batches, plan.max_tokens)))
        return
    if plan.workload not in rates.WORKLOADS:
        raise typer.BadParameter(f"{plan.workload}: {', '.join(rates.WORKLOADS)}", param_hint="--workload")
    asked = rates.Plan(batches, plan.max_tokens, plan.repeats, plan.workload)
    typer.echo(rates.run(_subject(model, options, settings), asked))


@dataclass(frozen=True, slots=True)
class ItlFlags:
    """What `bench itl` can be told."""

    streams: int = _say(32, "Text requests that decode meanwhile.")
    images: int = _say(16, "Pictures of the request that arrives.")
    repeats: int = _say(3, "How often it arrives.")
    pictures: str = _say("charts", "charts (850x600) or screenshots (1920x1080).")
    arms: str = _say("", "Placements to measure, with commas; empty takes all that this machine has.")
    most: int = _say(4096, "Tokens that a text request may have.")


def bench_itl(model: Model = "", *, plan: ItlFlags, options: BenchFlags, settings: Settings) -> None:
    """Gaps between tokens while a request with many pictures arrives; ends with one JSON line."""
    from foveate.bench.itl import Plan, run

    _need_ones(plan.streams, plan.images, plan.repeats, plan.most)
    asked = Plan(plan.streams, plan.images, plan.repeats, pictures=plan.pictures, arms=words(plan.arms), most=plan.most)
    typer.echo(run(_subject(model, options, settings), asked))


def bench_start(
    serve_words: Annotated[
        list[str] | None, typer.Argument(metavar="WORDS", help="The words behind `foveate serve`, model first.")
    ] = None,
    command: Annotated[str, typer.Option(help="Start this instead: a command that serves at --url.")] = "",
    repeats: Annotated[int, typer.Option(help="Fresh processes.", min=1)] = 3,
    patience_s: Annotated[float, typer.Option(help="Seconds that a start may take.", min=1.0)] = 900.0,
    url: Annotated[str, typer.Option(help="Where that command serves.")] = "",
    key: Annotated[str, typer.Option(help="API key of that server.")] = "",
) -> None:
    """Time until a fresh server process is ready and has answered; ends with one JSON line."""
    from foveate.bench.start import Plan, run

    if bool(command) != bool(url) or (command and serve_words):
        raise typer.BadParameter("--command and --url go together, and without words for foveate")
    typer.echo(run(Plan(tuple(serve_words or ("demo",)), command, url, key, repeats, patience_s)))


@dataclass(frozen=True, slots=True)
class ConcurrencyFlags:
    """What `bench concurrency` can be told."""

    at_once: int = _say(4, "Image requests at once, and one after another.")
    queued: int = _say(6, "Requests that arrive together at --slots.")
    slots: int = _say(4, "Requests that run at once (sets max-concurrency).")
    repeats: int = _say(3, "Measured rounds, after one warm-up.")
    max_tokens: int = _say(256, "Longest answer, in tokens.")


def bench_concurrency(model: Model = "demo", *, options: ConcurrencyFlags, settings: Settings) -> None:
    """Image requests at once against one after another, then more than there are slots; ends with one JSON line."""
    from foveate.bench.concurrency import Plan, run

    _need_ones(options.at_once, options.queued, options.slots, options.repeats, options.max_tokens)
    plan = Plan(options.at_once, options.queued, options.slots, options.repeats, options.max_tokens)
    typer.echo(run(model, settings, plan))


@dataclass(frozen=True, slots=True)
class EvalFlags:
    """What `eval charts` can be told."""

    url: str = _say("", "Ask a running server instead of opening the model here.")
    which: str = _say("charts", "charts, wordings, descriptions, matplotlib, pictures, sanity or images.", flag="set")
    out: Path | None = _say(None, "Write each answer to this file, as JSON lines.")
    against: Path | None = _say(None, "Compare with the answers of an earlier --out file.")
    concurrency: int = _say(4, "Questions asked at once.")
    limit: int | None = _say(None, "Only the first so many questions.")


def eval_charts(model: Model = "demo", *, options: EvalFlags, settings: Settings) -> None:
    """Ask about the bundled charts and count right answers; ends with one JSON line."""
    from foveate.evals import charts
    from foveate.show.talk import evaluate

    if options.which not in charts.SETS:
        raise typer.BadParameter(f"{options.which}: one of {', '.join(charts.SETS)}", param_hint="--set")
    plan = charts.Plan(options.which, options.concurrency, options.limit, options.out, options.against)
    charts.print_report(evaluate(plan, options.url, model, lambda: _open_service(model, settings)))


def build() -> typer.Typer:
    """The command tree."""
    # Plain help: rich's panels squeeze the texts of long flags into a narrow column.
    plain: dict[str, Any] = {"no_args_is_help": True, "add_completion": False, "rich_markup_mode": None}
    app = typer.Typer(name="foveate", help=SUMMARY, **plain)
    bench = typer.Typer(help="Measure; each prints a table, then one JSON line.", **plain)
    for command in (serve, ask, chat):
        app.command()(with_flags(command, settings=Settings))
    app.command()(demo)
    measures = (("ttft", bench_ttft, TtftFlags), ("decode", bench_decode, DecodeFlags), ("itl", bench_itl, ItlFlags))
    for name, measure, flags in measures:
        bench.command(name)(with_flags(measure, plan=flags, options=BenchFlags, settings=Settings))
    passed_on = {"ignore_unknown_options": True}  # flags of `serve` among the words
    bench.command("start", context_settings=passed_on)(with_flags(bench_start))
    bench.command("concurrency")(with_flags(bench_concurrency, options=ConcurrencyFlags, settings=Settings))
    app.add_typer(bench, name="bench")
    evals = typer.Typer(help="Ask questions with known answers.", **plain)
    evals.command("charts")(with_flags(eval_charts, options=EvalFlags, settings=Settings))
    # One command in the group would become the group itself.
    evals.callback()(lambda: None)
    app.add_typer(evals, name="eval")
    return app


def main() -> None:
    build()()


def _open_service(model: str, settings: Settings) -> Any:
    """A running service; progress is shown on the standard error while weights load."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    from foveate.core.observe import Counters
    from foveate.engine.build import open_engine
    from foveate.service.service import Service

    counters = Counters()
    columns = (TextColumn("loading {task.description}"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=not sys.stderr.isatty()) as progress:
        bar = progress.add_task(model, total=None)
        engine = open_engine(
            model,
            settings,
            lambda done, total: progress.update(bar, completed=done, total=total),
            lambda plan, seconds: counters.stepped(seconds, plan.token_count),
        )
    return Service(engine, counters)


def _log_to_stderr(level: str) -> None:
    if level.lower() not in LOG_LEVELS:
        raise ConfigError(f"unknown log level: {level} ({', '.join(LOG_LEVELS)})")
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s")


if __name__ == "__main__":
    main()
