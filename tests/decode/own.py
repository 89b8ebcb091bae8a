from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from objbuf_dagster.decode import EntryDecoder, Undecodable


class Orders(EntryDecoder):
    """Lines of `id;amount`, many to an entry; `orders/1` as metadata payload says that an entry is one of ours."""

    name = "orders"
    version = 1
    schema = pa.schema([pa.field("id", pa.string(), nullable=False), pa.field("amount", pa.int64())])

    def takes(self, payload: bytes | None) -> bool:
        if payload is not None and payload.startswith(b"orders/") and payload != b"orders/1":
            raise Undecodable(f"orders of another version: {payload!r}")
        return payload == b"orders/1"

    def records(self, entry: bytes) -> Iterable[Mapping[str, Any]]:
        for line in entry.decode().splitlines():
            order, _, amount = line.partition(";")
            if not order:
                raise Undecodable("an order without an id")
            yield {"id": order, "amount": int(amount) if amount else None}
