"""How much may one encoded value take?"""

#: Bytes of one encoded value, or of all arguments of one call together.
MOST_BYTES = 1_048_576
#: Brackets open at once in the text: a list or dict takes one, a tuple or set two, a dict with keys that are
#: not all str three.
MOST_DEPTH = 64
#: Digits of an integer, or of a decimal that is written out: Python itself refuses to spell much more, and what is
#: short as "1e9999999" is long as an integer.
MOST_DIGITS = 4_000
