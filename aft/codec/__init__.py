"""How does a value become JSON text, and the same value again?

The text alone says what each value is: what JSON has no word for is tagged, ``{"$aft": "date", "v":
"2024-02-29"}``. The annotation says what to build of it: a dataclass, a model, an enum. So text can be read
without the user's code (by the dispatcher, the console), no type is ever looked up by a stored name, and
nothing is ever unpickled.

What was encoded comes back equal and of the type that the annotation says, or it is refused when it is
encoded, with the path to the offender. Where the annotation builds something (dataclass, model, enum …) that
is not assumed but tried: the value is rebuilt from what would be stored, and compared. Reading is lenient
where nothing is lost, so that JSON written by hand is welcome: ``"2024-02-29"`` is read as a date where a
date is declared.

What people and programs see of stored values is ordinary JSON, without tags (:mod:`aft.codec.display`).

Sets come back as sets that are gone through in the same order in every process (:mod:`aft.codec.ordered`).

Codecs hold no state that changes; they may be used from several threads.
"""

from aft.codec.arguments import ArgumentsCodec, arguments_codec, read_by_name, result_codec
from aft.codec.comparing import is_same
from aft.codec.display import stored_to_json, stored_to_text, tagged_to_json, value_to_json
from aft.codec.limits import MOST_BYTES, MOST_DEPTH
from aft.codec.tagging import MARK
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
