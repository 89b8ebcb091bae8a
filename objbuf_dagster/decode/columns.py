"""Lists of what protobuf gave to Arrow columns. Delta and Spark have no unsigned numbers, and no nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

_MOST_LONG = 2**63 - 1


def instant_type() -> pa.DataType:
    """What Delta and Spark call a timestamp."""
    import pyarrow as pa

    return pa.timestamp("us", tz="UTC")


def map_type() -> pa.DataType:
    """What attributes are; a value is null where it is unset."""
    import pyarrow as pa

    return pa.map_(pa.string(), pa.string())


def instants(unix_nanos: Sequence[int]) -> tuple[pa.Array, pa.Array]:
    """Times as timestamps, cut to microseconds, and exactly, as the 64 bits that came. 0 is unset, so null.

    From 2^63 on (the year 2262; in truth a clock before 1970, such as Go's zero time) a signed number is negative, and
    the timestamp is null: what came is there exactly, and nothing is guessed.
    """
    import numpy as np
    import pyarrow as pa

    bits = np.array(unix_nanos, np.uint64).view(np.int64)
    micros = pa.array(bits // 1000, pa.int64(), mask=bits <= 0)
    return micros.cast(instant_type()), pa.array(bits, pa.int64(), mask=bits == 0)


def instant_fields(name: str) -> list[pa.Field]:
    """The two columns of `instants`."""
    import pyarrow as pa

    return [pa.field(name, instant_type()), pa.field(f"{name}UnixNano", pa.int64())]


def longs(counts: Sequence[int | None]) -> tuple[pa.Array, npt.NDArray[np.int64]]:
    """Unsigned counts as signed numbers, and the positions of those that are too large for one (null here)."""
    import numpy as np
    import pyarrow as pa

    if max((count for count in counts if count is not None), default=0) <= _MOST_LONG:
        return pa.array(counts, pa.int64()), np.zeros(0, np.int64)
    large = [at for at, count in enumerate(counts) if count is not None and count > _MOST_LONG]
    fitting = [None if count is None or count > _MOST_LONG else count for count in counts]
    return pa.array(fitting, pa.int64()), np.array(large, np.int64)


def lists(ends: Sequence[int], values: pa.Array) -> pa.Array:
    """Lists that end at these places, the first of which is 0, of `values`."""
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), values)


def owners(ends: Sequence[int], positions: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Which lists the values at these positions are in."""
    import numpy as np

    return np.searchsorted(np.array(ends, np.int64), positions, side="right") - 1


def structs(fields: Sequence[pa.Field], columns: Sequence[pa.Array]) -> pa.Array:
    import pyarrow as pa

    return pa.StructArray.from_arrays(list(columns), fields=list(fields))


def spread(values: pa.Array, indices: npt.NDArray[Any]) -> pa.Array:
    """The value at each index, every value kept once."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), values)


def enum_text(number: int, names: Sequence[str]) -> str:
    """The name of an enum's value; its number if it has none here, since enums grow."""
    return names[number] if 0 <= number < len(names) else str(number)
