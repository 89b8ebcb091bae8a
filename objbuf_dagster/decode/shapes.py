"""Attributes of the commonest shapes, read all at a time.

Nearly every attribute is a key and a short string, an integer or a double, written in the one way that every library
writes them. Those are recognised by their bytes, all at once; all others, valid or not, are left to protobuf.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from objbuf_dagster.decode.values import double_text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_KEY, _VALUE = 0x0A, 0x12
_STRING, _INT, _DOUBLE = 0x0A, 0x18, 0x21
_SHORT = 0x80
"""Lengths below are one byte."""

_LONGEST_VARINT = 10


@dataclass(frozen=True, slots=True)
class Read:
    """Some of the attributes: where they were, and key, text and kind of each."""

    positions: npt.NDArray[np.int64]
    keys: pa.Array
    texts: pa.Array
    kinds: pa.Array


def read_common(serialised: pa.Array) -> list[Read]:
    """What is of a common shape among these KeyValues, a binary array without nulls."""
    import numpy as np
    import pyarrow as pa

    if not len(serialised):
        return []
    ends = np.frombuffer(serialised.buffers()[1], np.int32)[serialised.offset :][: len(serialised) + 1].astype(np.int64)
    content = serialised.buffers()[2]
    # 16 bytes more, so that no look ahead leaves the buffer
    data = np.concatenate((np.frombuffer(content, np.uint8)[: ends[-1]], np.zeros(16, np.uint8)))
    start, size = ends[:-1], np.diff(ends)
    key_size = data[start + 1].astype(np.int64)
    fits = (size >= 6) & (data[start] == _KEY) & (key_size < _SHORT) & (key_size + 6 <= size)
    at = np.flatnonzero(fits)
    value = start[at] + 2 + key_size[at]  # where the field `value` begins
    rest = size[at] - 2 - key_size[at]
    fits = (data[value] == _VALUE) & (rest - 2 < _SHORT) & (data[value + 1] == rest - 2)
    at, value, rest = at[fits], value[fits], rest[fits] - 3  # what follows the tag of the kind
    tag = data[value + 2]
    found = []
    try:
        for kind, reader in ((_STRING, _strings), (_INT, _integers), (_DOUBLE, _doubles)):
            of_kind = np.flatnonzero(tag == kind)
            good, texts, name = reader(data, value[of_kind] + 3, rest[of_kind])
            place = at[of_kind][good]
            keys = _texts(data, start[place] + 2, key_size[place])
            found.append(Read(place, keys, texts, pa.array([name] * len(place), pa.string())))
    except pa.ArrowInvalid:
        return []  # a text that is not UTF-8: protobuf will tell which
    return found


def _strings(
    data: npt.NDArray[np.uint8], begin: npt.NDArray[np.int64], size: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.bool_], pa.Array, str | None]:
    good = data[begin] == size - 1
    return good, _texts(data, begin[good] + 1, size[good] - 1), None


def _integers(
    data: npt.NDArray[np.uint8], begin: npt.NDArray[np.int64], size: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.bool_], pa.Array, str | None]:
    import numpy as np
    import pyarrow as pa

    steps = np.arange(_LONGEST_VARINT)
    parts = data[begin[:, None] + steps]
    inside = steps < size[:, None]
    goes_on = (parts >= 0x80) == (steps < size[:, None] - 1)
    good = (size >= 1) & (size <= _LONGEST_VARINT) & np.all(goes_on | ~inside, axis=1)
    good &= (size < _LONGEST_VARINT) | (parts[:, -1] == 1)  # more than 64 bits
    bits = np.where(inside, parts & 0x7F, 0).astype(np.uint64) << (7 * steps).astype(np.uint64)
    numbers = np.bitwise_or.reduce(bits, axis=1)[good].view(np.int64)
    return good, pa.array(numbers).cast(pa.string()), "int"


def _doubles(
    data: npt.NDArray[np.uint8], begin: npt.NDArray[np.int64], size: npt.NDArray[np.int64]
) -> tuple[npt.NDArray[np.bool_], pa.Array, str | None]:
    import numpy as np
    import pyarrow as pa

    good = size == 8
    numbers = np.ascontiguousarray(data[begin[good][:, None] + np.arange(8)]).view("<f8").ravel()
    return good, pa.array([double_text(number) for number in numbers.tolist()], pa.string()), "double"


def _texts(data: npt.NDArray[np.uint8], begin: npt.NDArray[np.int64], size: npt.NDArray[np.int64]) -> pa.Array:
    """The bytes from `begin` on, which rises, as strings. Raises ArrowInvalid if one is not UTF-8."""
    import numpy as np
    import pyarrow as pa

    # An array of the texts and of what lies between them, over the same bytes: every other one is taken from it.
    ends = np.empty(2 * len(begin), np.int32)
    ends[0::2] = begin
    ends[1::2] = begin + size
    every = pa.Array.from_buffers(pa.binary(), max(0, len(ends) - 1), [None, pa.py_buffer(ends), pa.py_buffer(data)])
    return every.take(pa.array(np.arange(0, len(ends), 2))).cast(pa.string())
