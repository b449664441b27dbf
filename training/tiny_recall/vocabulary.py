"""The words that have an id of their own in the tokenizer; everything else is spelled in bytes.

Read by `tokenizer` (to build the vocabulary) and by the generators of conversations. Pure data.
The order is part of the format of the trained checkpoint: append, never sort.
"""


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


PAD = "<|pad|>"
SYSTEM = "<|system|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
END = "<|end|>"
SPECIAL_TOKENS = (PAD, SYSTEM, USER, ASSISTANT, END)

THINGS = words(
    """lamp door book chair table window garden house car boat train plane bridge river tower castle market
    school shop office kitchen room box bag key clock ring coin hat coat shoe cup plate spoon bottle
    basket drum piano flag map letter ticket camera phone radio engine wheel"""
)
NAMES = words(
    """anna bob carl dora emma frank greta hugo ida jack kate leo mia nina oscar paul rosa sam tina uma
    victor wanda"""
)
KEY_WORDS = THINGS + NAMES
"""Subjects of facts."""

VALUE_WORDS = words(
    """red blue green yellow black white brown pink gray purple orange silver gold cat dog fox wolf bear lion
    tiger horse cow sheep goat pig duck owl eagle snake frog fish whale mouse rabbit deer apple pear plum
    cherry lemon melon grape peach banana carrot bread cheese honey paris rome oslo cairo lima tokyo
    berlin madrid iron stone wood glass paper north south east west"""
)
"""Contents of facts."""

PHRASE_WORDS = words(
    """What is the The of value Remember these facts Facts Here are some this Recall Tell me Which has Repeat
    Copy Say Add and Count from to down OK I do not know Hello How can help you am fine thank tiny recall
    small model remember copy text count add You welcome Goodbye Bye Who what who your name about Thanks
    Thank very much See later Hi Hey Good morning ask them too hi hello thanks bye helpful assistant
    Answer with one word only answer questions Use many a in on it we was were for that then there day
    night old new long road people walked rain sun wind weather today warm went home looked at hill street"""
)
"""Words of questions, answers and filler text."""

WORDS = KEY_WORDS + VALUE_WORDS + PHRASE_WORDS
