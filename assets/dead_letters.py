"""What could not be decoded."""

import dagster as dg

from assets.otel_logs import otel_logs
from assets.source import source

dead_letters = dg.AssetSpec(
    "dead_letters",
    deps=[otel_logs],
    partitions_def=source.partitions,
    group_name=source.name,
    kinds={"deltalake"},
    description=(
        "Entries that a decoder could not make sense of, as they came, with the reason. `objbuf dead-letters` shows "
        "them and, once the decoder is mended, decodes them again."
    ),
)
