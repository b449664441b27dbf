"""The limit on the thoughts of an answer, as the engine keeps it. Pure; `output_grammar` uses it."""

from mamba_server.wire import ThoughtBudget
from mamba_text.reasoning import ReasoningFormat, ReasoningStart
from mamba_text.tokenizer import Tokenizer


def thought_budget(
    tokens: int, form: ReasoningFormat, opening: str, call_begin: str | None, tokenizer: Tokenizer
) -> ThoughtBudget | None:
    """Return the limit for one answer; None = the prompt has ended the thoughts already.

    Args:
        tokens: most tokens of the thoughts.
        form: markers of the model's thoughts.
        opening: the part of the answer with which the prompt ends.
        call_begin: marker of a call, which ends thoughts, too; None = the model may not call.
        tokenizer: the model's tokenizer.
    """
    start = ReasoningStart.of(form, opening)
    if start is ReasoningStart.CLOSED:
        return None
    begin = form.begin if start is ReasoningStart.UNSAID else ""
    ends = (form.end,) if call_begin is None else (form.end, call_begin)
    # Models are taught the marker on a line of its own, with a blank line between it and the answer.
    closing = tokenizer.encoding(f"\n{form.end}\n\n").ids
    return ThoughtBudget(tokens, begin, ends, tuple(closing))
