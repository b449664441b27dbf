"""The dashboard of use and cost: what keys and models take of the engines, and what that costs.

Every gateway counts what it has read of every engine, so panels take the largest of the gateways, not their
sum.
"""

from observability.panels import Dashboard, Panel, Query
from observability.series import series, total

NAMES = ("namespace", "model", "key", "adapter")
"""Labels of one counter of the use, the same at all gateways of a model."""
MONEY = (*NAMES, "currency")
HOUR_SECONDS = 3600
MINUTE_SECONDS = 60


def used(kind: str, *by: str) -> str:
    """Return the use in one second, of each key or model, from the gateway that has read the most."""
    labels = MONEY if "cost" in kind else NAMES
    largest = f"max by ({', '.join(labels)}) ({series(f'gateway_usage_{kind}').rate()})"
    return total(largest, *by)


def in_an_hour(kind: str, *by: str) -> str:
    """Return the use in one hour at the present rate."""
    return f"{HOUR_SECONDS} * {used(kind, *by)}"


def tokens_in_a_minute(*by: str) -> str:
    """Return the tokens of prompts and answers in one minute at the present rate."""
    both = " + ".join(used(kind, *by) for kind in ("prompt_tokens", "output_tokens"))
    return f"{MINUTE_SECONDS} * ({both})"


USAGE = Dashboard(
    "mambaserve-usage",
    "mambaserve / Usage and cost",
    "What keys and models take of the engines, and what that costs.",
    series("gateway_usage_requests").name + "_total",
    (
        (
            Panel(
                "Cost of an hour by key",
                (Query(in_an_hour("cost", "key", "currency"), "{{key}} ({{currency}})"),),
                "Cost of one hour at the present rate. The panel is empty while gateways have no prices: set "
                "gateway.usage.prices. `other` are the keys beyond 256 series of a gateway.",
                unit="none",
                stacked=True,
            ),
            Panel(
                "Cost of an hour by model",
                (Query(in_an_hour("cost", "model", "currency"), "{{model}} ({{currency}})"),),
                "Cost of one hour at the present rate, of all keys together.",
                unit="none",
                stacked=True,
            ),
            Panel(
                "Saved by resuming in an hour",
                (Query(in_an_hour("saved_cost", "model", "currency"), "{{model}} ({{currency}})"),),
                "Price of the device time that the resumed tokens would have taken.",
                unit="none",
                stacked=True,
            ),
        ),
        (
            Panel(
                "Tokens a minute by key",
                (Query(tokens_in_a_minute("key"), "{{key}}"),),
                "Tokens of prompts, resumed ones included, and of answers.",
                stacked=True,
            ),
            Panel(
                "Tokens a minute by model",
                (Query(tokens_in_a_minute("model"), "{{model}}"),),
                "Tokens of prompts, resumed ones included, and of answers.",
                stacked=True,
            ),
            Panel(
                "Share of prompt tokens that were resumed, by key",
                (Query(f"{used('resumed_tokens', 'key')} / {used('prompt_tokens', 'key')}", "{{key}}"),),
                "A key with a low share sends prompts that begin differently each time.",
                unit="percentunit",
                most=1,
            ),
        ),
        (
            Panel(
                "Devices in use by key",
                (Query(used("device_seconds", "key"), "{{key}}"),),
                "Device seconds in one second: 1 is one device that works for the key all the time.",
                stacked=True,
            ),
            Panel(
                "Devices in use by model",
                (Query(used("device_seconds", "model"), "{{model}}"),),
                "Device seconds in one second. Compare with the devices that the model has.",
                stacked=True,
            ),
            Panel(
                "Requests by key",
                (Query(used("requests", "key"), "{{key}}"),),
                "Requests that ended, however they ended.",
                unit="reqps",
                stacked=True,
            ),
        ),
    ),
)
