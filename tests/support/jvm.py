"""What Spark's JVMs are started with here."""

from __future__ import annotations

import tempfile

from objbuf_dagster.spark.archive import IN_HASTE


def variables() -> dict[str, str]:
    """For processes that start Spark: it does little but start, and much of it is killed.

    What a killed JVM leaves goes with all else that is temporary; by itself Java takes /tmp, whatever TMPDIR says.
    """
    place = tempfile.gettempdir()
    return {"SPARK_SUBMIT_OPTS": f"{IN_HASTE} -XX:-UsePerfData -Djava.io.tmpdir={place}", "SPARK_LOCAL_DIRS": place}
