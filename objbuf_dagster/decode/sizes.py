"""How large rows are, one by one, so that blocks of them can be cut before they are written out."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


def sizes(array: pa.Array) -> npt.NDArray[np.int64]:  # noqa: PLR0911  one per family of types
    """Bytes per value once it is written out; of a dictionary-encoded array, without writing it out."""
    import numpy as np
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind):
        indices = array.indices.fill_null(0).to_numpy(zero_copy_only=False)
        return sizes(array.dictionary)[indices] if len(array.dictionary) else np.zeros(len(array), np.int64)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return 4 + np.diff(_offsets(array, np.int32))
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        return 8 + np.diff(_offsets(array, np.int64))
    if pa.types.is_map(kind):
        return 4 + _sums(_offsets(array, np.int32), sizes(array.keys) + sizes(array.items))
    if pa.types.is_list(kind):
        return 4 + _sums(_offsets(array, np.int32), sizes(array.values))
    if pa.types.is_struct(kind):
        children = (sizes(array.field(at)) for at in range(kind.num_fields))
        return sum((child for child in children), np.ones(len(array), np.int64))
    width = max(1, kind.bit_width // 8) if kind.num_fields == 0 and not pa.types.is_null(kind) else 1
    return np.full(len(array), width, np.int64)


def cuts(each: npt.NDArray[np.int64], most_bytes: int, most_rows: int) -> list[tuple[int, int]]:
    """Begin and end of blocks of at most `most_bytes` and `most_rows`; a row that is larger is a block of its own."""
    import numpy as np

    until = np.cumsum(each)
    blocks = []
    begin, before = 0, 0
    while begin < len(each):
        end = int(np.searchsorted(until, before + most_bytes, side="right"))
        end = min(max(end, begin + 1), begin + most_rows)
        blocks.append((begin, end))
        begin, before = end, int(until[end - 1])
    return blocks


def _offsets(array: pa.Array, width: type[np.signedinteger]) -> npt.NDArray[np.int64]:
    import numpy as np

    if not len(array):
        return np.zeros(1, np.int64)
    every = np.frombuffer(array.buffers()[1], width)
    return every[array.offset : array.offset + len(array) + 1].astype(np.int64)


def _sums(offsets: npt.NDArray[np.int64], children: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Sizes of lists, from those of all children of the array that this one is a part of."""
    import numpy as np

    until = np.concatenate((np.zeros(1, np.int64), np.cumsum(children)))
    found: npt.NDArray[np.int64] = until[offsets[1:]] - until[offsets[:-1]]
    return found
