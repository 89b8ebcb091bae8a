"""Attribute lists to two map columns: the texts of all attributes, and the kinds of those that are no strings.

They are most of what an export request holds. So they are collected as bytes, those of a common shape are read all at a
time, and of the others each distinct one once; Arrow puts the columns together. A walk through all takes twice as long.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from objbuf_dagster.decode.shapes import Read, read_common
from objbuf_dagster.decode.values import REPEATED, UnknownKind, json_of, key_of, text_of

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class AttributeMaps:
    """One map per list, and the positions of lists with an attribute that is no valid protobuf (their maps are wrong).

    A map never has a key twice, which many readers would not take: see `repeated` in `values`.
    """

    texts: pa.Array
    kinds: pa.Array
    bad: npt.NDArray[np.int64]


class Attributes:
    """Collects attribute lists."""

    def __init__(self) -> None:
        self._flat: list[bytes] = []
        self._ends: list[int] = [0]

    def add(self, attributes: Iterable[bytes]) -> None:
        """One more list, of serialised KeyValues."""
        self._flat.extend(attributes)
        self._ends.append(len(self._flat))

    def build(self) -> AttributeMaps:
        import numpy as np

        every, bad = _read_all(_serialised(self._flat))
        count = len(self._ends) - 1
        lists = np.repeat(np.arange(count), np.diff(self._ends))
        bad_lists = np.unique(lists[bad])
        every, lists = self._fold(every, lists, set(bad.tolist()))
        has_kind = every.kinds.is_valid()
        return AttributeMaps(
            _maps(every.keys, every.texts, lists, count),
            _maps(
                every.keys.filter(has_kind),
                every.kinds.filter(has_kind),
                lists[has_kind.to_numpy(zero_copy_only=False)],
                count,
            ),
            bad_lists,
        )

    def _fold(self, every: Read, lists: npt.NDArray[np.int64], bad: set[int]) -> tuple[Read, npt.NDArray[np.int64]]:
        """The same without a key twice in a list: its values are one `repeated` value, where the first was."""
        import numpy as np
        import pyarrow as pa
        import pyarrow.compute as pc

        encoded = every.keys.dictionary_encode()
        pairs = lists * len(encoded.dictionary) + encoded.indices.to_numpy()
        ordered = np.sort(pairs)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if not len(twice):
            return every, lists
        places = defaultdict(list)
        for at in np.flatnonzero(np.isin(pairs, twice)).tolist():
            places[int(pairs[at])].append(at)
        texts = {
            group[0]: f"[{','.join('null' if at in bad else self._json(at) for at in group)}]"
            for group in places.values()
        }
        first, keep = np.zeros(len(lists), bool), np.ones(len(lists), bool)
        first[list(texts)] = True
        keep[[at for group in places.values() for at in group[1:]]] = False
        mask, kept = pa.array(first), pa.array(keep)
        in_order = pa.array(list(texts.values()), pa.string())
        folded = Read(
            np.flatnonzero(keep),
            every.keys.filter(kept),
            pc.replace_with_mask(every.texts, mask, in_order).filter(kept),
            pc.replace_with_mask(every.kinds, mask, pa.array([REPEATED] * len(texts), pa.string())).filter(kept),
        )
        return folded, lists[keep]

    def _json(self, position: int) -> str:
        from opentelemetry.proto.common.v1.common_pb2 import KeyValue

        return json_of(KeyValue.FromString(self._flat[position]).value)


def _serialised(flat: list[bytes]) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    ends = np.zeros(len(flat) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, flat), np.int32, len(flat)), out=ends[1:])
    return pa.Array.from_buffers(pa.binary(), len(flat), [None, pa.py_buffer(ends), pa.py_buffer(b"".join(flat))])


def _read_all(serialised: pa.Array) -> tuple[Read, npt.NDArray[np.int64]]:
    """Key, text and kind of each, in order, and the positions of those that are invalid."""
    import numpy as np
    import pyarrow as pa

    found = read_common(serialised)
    left = np.ones(len(serialised), bool)
    for each in found:
        left[each.positions] = False
    others, bad = _read_others(serialised, np.flatnonzero(left))
    found.append(others)
    place = np.empty(len(serialised), np.int64)
    place[np.concatenate([each.positions for each in found])] = np.arange(len(serialised))
    order = pa.array(place)
    return Read(
        np.arange(len(serialised)),
        pa.concat_arrays([each.keys for each in found]).take(order),
        pa.concat_arrays([each.texts for each in found]).take(order),
        pa.concat_arrays([each.kinds for each in found]).take(order),
    ), bad


def _read_others(serialised: pa.Array, positions: npt.NDArray[np.int64]) -> tuple[Read, npt.NDArray[np.int64]]:
    """The attributes at these positions, with protobuf, and the positions of those that it does not take or know."""
    import numpy as np
    import pyarrow as pa
    from google.protobuf.message import DecodeError
    from opentelemetry.proto.common.v1.common_pb2 import KeyValue

    encoded = serialised.take(pa.array(positions)).dictionary_encode()
    keys: list[str] = []
    texts: list[str | None] = []
    kinds: list[str | None] = []
    bad: list[int] = []
    for data in encoded.dictionary.to_pylist():
        try:
            item = KeyValue.FromString(data)
            key, (text, kind) = key_of(item), text_of(item.value)
        except (DecodeError, RecursionError, UnknownKind):
            bad.append(len(keys))
            key, text, kind = "", None, None
        keys.append(key)
        texts.append(text)
        kinds.append(kind)
    codes = encoded.indices
    read = Read(positions, *(pa.array(values, pa.string()).take(codes) for values in (keys, texts, kinds)))
    return read, positions[np.isin(codes.to_numpy(), bad)]


def _maps(keys: pa.Array, items: pa.Array, lists: npt.NDArray[np.int64], count: int) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    offsets = np.searchsorted(lists, np.arange(count + 1)).astype(np.int32)
    return pa.MapArray.from_arrays(pa.array(offsets), keys, items)
