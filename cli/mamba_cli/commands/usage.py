"""`mambaserve usage`: who has used the engines behind a gateway, what it cost, and what resuming saved."""

from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mamba_cli.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table


class By(StrEnum):
    """Grouping of the lines of a report."""

    key = "key"
    model = "model"
    adapter = "adapter"
    day = "day"


class UsageFormat(StrEnum):
    """Format in which the report is printed."""

    table = "table"
    json = "json"
    csv = "csv"


DAY = ("%Y-%m-%d",)
WIDE = 140
"""Width in columns at which the table is not cut."""
_COUNTS = ("requests", "prompt_tokens", "resumed_tokens", "output_tokens")
_SECONDS = ("device_seconds", "slot_seconds", "page_seconds", "saved_device_seconds")
_COSTS = ("cost", "saved_cost")
_TITLES = {
    "requests": "requests", "prompt_tokens": "prompt", "resumed_tokens": "resumed", "output_tokens": "output",
    "device_seconds": "device s", "slot_seconds": "slot s", "page_seconds": "page s",
    "saved_device_seconds": "saved s", "cost": "cost", "saved_cost": "saved",
}  # fmt: skip


def command(
    url: Annotated[
        str,
        typer.Argument(
            metavar="[URL|NAME]",
            envvar="MAMBASERVE_URL",
            help="URL of a gateway, or the name of a deployment that `up` serves.",
        ),
    ] = "http://127.0.0.1:8000",
    by: Annotated[
        By, typer.Option(envvar="MAMBASERVE_USAGE_BY", help="One line per key, model, adapter or day.")
    ] = By.key,
    day: Annotated[
        datetime | None,
        typer.Option(formats=DAY, envvar="MAMBASERVE_USAGE_DAY", help="One day in UTC; default: today."),
    ] = None,
    since: Annotated[
        datetime | None,
        typer.Option(formats=DAY, envvar="MAMBASERVE_USAGE_SINCE", help="First day in UTC, until today."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="MAMBASERVE_API_KEY",
            help="API key of the gateway: it shows its own use, or all where --usage-reader names it.",
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(min=0.001, envvar="MAMBASERVE_USAGE_TIMEOUT", help="Timeout in seconds."),
    ] = 10.0,
    output: Annotated[
        UsageFormat,
        typer.Option(
            "--output", "--format", "-o", envvar="MAMBASERVE_USAGE_OUTPUT", help="Format of the result."
        ),
    ] = UsageFormat.table,
) -> None:
    """Show what API keys, models or adapters have used: tokens, device time, memory, cost and savings."""
    import asyncio

    if day is not None and since is not None:
        raise InvalidInput("give --day for one day, or --since for all from that day on, and not both")
    query = {"by": by.value}
    if first := day or since:
        query["since"] = first.date().isoformat()
    if day is not None:
        query["until"] = day.date().isoformat()
    report = asyncio.run(_report(_url(url), query, api_key, timeout))
    if output is UsageFormat.json:
        import json

        typer.echo(json.dumps(report, indent=2))
    elif output is UsageFormat.csv:
        _print_csv(report)
    else:
        from rich.console import Console

        console = Console()
        # What goes to a file or another program is not cut to the width of a terminal.
        (console if console.is_terminal else Console(width=max(WIDE, console.width))).print(_table(report))


def _url(target: str) -> str:
    """Return the URL `target`, or the URL of the deployment with the name `target`. Raises InvalidInput."""
    from mamba_cli.endpoint import base_url, without_scheme
    from mamba_cli.local.running import running

    if "://" not in target:
        for deployment in running():
            if deployment.name == target:
                return deployment.url
        if (no_url := without_scheme(target)) is not None:
            raise no_url
        raise InvalidInput(f"no deployment of the name {target!r} runs here: mambaserve ps lists them")
    return base_url(target)


async def _report(url: str, query: dict[str, str], api_key: str | None, timeout: float) -> dict[str, Any]:
    """Return the report of the gateway, which has to answer within `timeout` seconds.

    Raises InvalidInput, RunFailed.
    """
    import aiohttp

    from mamba_cli.endpoint import headers, refusal, unreachable
    from mamba_cli.errors import RunFailed

    limits = aiohttp.ClientTimeout(total=timeout)
    try:
        async with (
            aiohttp.ClientSession(timeout=limits) as session,
            session.get(f"{url}/v1/usage", params=query, headers=headers(api_key)) as answer,
        ):
            status, body = answer.status, await answer.json(content_type=None)
    except ValueError:
        raise RunFailed(f"{url} answered with something that is no report of usage") from None
    except (TimeoutError, aiohttp.ClientError, OSError) as error:
        raise unreachable(url, error) from error
    if status == 200 and isinstance(body, dict) and isinstance(body.get("data"), list):
        return body
    if status == 404:
        raise InvalidInput(f"{url} keeps no ledger: give the URL of a gateway, such as that of `up`")
    if status == 400:
        raise InvalidInput(f"{url}: {body['error']['message']}")
    raise refusal(url, status, body)


def _columns(report: dict[str, Any]) -> tuple[str, ...]:
    return _COUNTS + _SECONDS + (_COSTS if report["currency"] else ())


def _print_csv(report: dict[str, Any]) -> None:
    """Print one line for each name, without the total, so that programs can add up the lines."""
    import csv
    import sys

    columns = _columns(report)
    currency = ("currency",) if report["currency"] else ()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow((report["by"], *columns, *currency))
    for line in report["data"]:
        money = (report["currency"],) if currency else ()
        writer.writerow((line["name"], *(line[column] for column in columns), *money))


def _table(report: dict[str, Any]) -> "Table":
    from rich.table import Table

    days = report["since"]
    if report["until"] != days:
        days = f"{days} to {report['until']}"
    table = Table(box=None, padding=(0, 2, 0, 0), title=f"{days} (UTC)", title_justify="left")
    table.add_column(report["by"], overflow="fold")
    columns = _columns(report)
    for column in columns:
        money = f" {report['currency']}" if column in _COSTS else ""
        table.add_column(_TITLES[column] + money, justify="right", overflow="fold")
    for line in report["data"]:
        name = line["name"] or ("(base model)" if report["by"] == "adapter" else "")
        table.add_row(name, *(_text(column, line[column]) for column in columns))
    if len(report["data"]) != 1:
        table.add_row("total", *(_text(column, report["total"][column]) for column in columns), style="bold")
    return table


def _text(column: str, value: float) -> str:
    if column in _COSTS:
        return f"{value:,.4f}"
    return f"{value:,.1f}" if column in _SECONDS else f"{value:,}"
