"""The options of `chat` and `run` for what a conversation begins with and how its answers are sampled."""

from typing import Annotated

import typer

SystemOption = Annotated[
    str | None,
    typer.Option(envvar="MAMBASERVE_CHAT_SYSTEM", help="System message that the conversation begins with."),
]
MaxTokensOption = Annotated[
    int, typer.Option(min=1, envvar="MAMBASERVE_CHAT_MAX_TOKENS", help="Longest answer, in tokens.")
]
TemperatureOption = Annotated[
    float | None,
    typer.Option(
        min=0,
        envvar="MAMBASERVE_CHAT_TEMPERATURE",
        help="Sampling temperature; 0 = greedy; default: the model's.",
    ),
]
