"""Encodes values as JSON text, and decodes the text to equal values of the same types.

The text alone says what each value is: types that JSON does not have are tagged, ``{"$aft": "date", "v":
"2024-02-29"}``. The annotation says what to build from it: a dataclass, a model, an enum. So text can be read without
the user's code (by the dispatcher, the console), no type is ever looked up by a stored name, and nothing is ever
unpickled.

A decoded value is equal to the encoded one and of the annotation's type; a value for which this does not hold is
refused when it is encoded, with the path to the offender. Where the annotation builds something (dataclass, model, enum
…) that is tested: the value is rebuilt from what would be stored, and compared. Reading is lenient where nothing is
lost, so that JSON written by hand is accepted: ``"2024-02-29"`` is read as a date where a date is declared.

People and programs see stored values as ordinary JSON, without tags (:mod:`aft.codec.display`).

Sets are decoded as sets that iterate in the same order in every process (:mod:`aft.codec.ordered_sets`).

Codecs are thread-safe; their only mutable state is a cache of the last encoding, replaced in one assignment.
"""

from aft.codec.arguments import ArgumentsCodec, arguments_codec, read_by_name, result_codec
from aft.codec.compare import is_same
from aft.codec.display import stored_to_json, stored_to_text, tagged_to_json, value_to_json
from aft.codec.tags import MARK, MOST_BYTES, MOST_DEPTH
from aft.codec.text import decode_untyped
from aft.codec.values import ValueCodec, value_codec

__all__ = [
    "MARK",
    "MOST_BYTES",
    "MOST_DEPTH",
    "ArgumentsCodec",
    "ValueCodec",
    "arguments_codec",
    "decode_untyped",
    "is_same",
    "read_by_name",
    "result_codec",
    "stored_to_json",
    "stored_to_text",
    "tagged_to_json",
    "value_codec",
    "value_to_json",
]
