"""What a grammar may cost: the same for the API process, which checks it, and the engine, which follows it.

A schema of 64 KB may have some 1,900 optional properties, whose row has 8,000 items; the library's own limit
is 2,000, which was found only after the first token. A mask takes 50 us on average and at most some 130 ms
within these, for grammars that were made to cost much; their first mask is made beside the loop.
"""

from llguidance import LLParserLimits

LIMITS = LLParserLimits(
    initial_lexer_fuel=300_000,
    step_lexer_fuel=50_000,
    step_max_items=20_000,
    max_items_in_row=20_000,
    max_lexer_states=50_000,
    max_grammar_size=50_000,
    verbose_errors=False,
)
