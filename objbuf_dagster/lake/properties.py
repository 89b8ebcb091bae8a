"""A change of a table's properties on hdfs, by a process of its own.

deltalake lets no thread of Python run meanwhile, not even the one that keeps the time, and waits for a NameNode without
end. A process can be ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

from objbuf_dagster.store.deadline import Overdue

_LOST = 3
_CHANGE = f"""
import sys
sys.path = [place for place in sys.path if place]  # not whatever is in the working directory
import json
from deltalake import CommitProperties, DeltaTable
from deltalake.exceptions import CommitFailedError

given = json.load(sys.stdin)
try:
    table = DeltaTable(given["url"], version=given["version"], storage_options=given["settings"])
    words = CommitProperties(custom_metadata=given["metadata"], max_commit_retries=0)
    table.alter.set_table_properties(given["properties"], commit_properties=words)
except CommitFailedError:
    sys.exit({_LOST})
except Exception as error:
    sys.stderr.write(str(error))
    sys.exit(1)
"""


def set_elsewhere(
    url: str,
    settings: Mapping[str, str] | None,
    version: int,
    properties: Mapping[str, str],
    metadata: Mapping[str, Any],
    seconds: float,
) -> None:
    """One commit, right behind this version. Raises Overdue, and what deltalake raises, as its own or as OSError."""
    from deltalake.exceptions import CommitFailedError

    given = {"url": url, "settings": settings, "version": version, "properties": properties, "metadata": metadata}
    try:
        ran = subprocess.run(  # noqa: S603  ours; the settings may be secrets, and go where nobody lists them
            [sys.executable, "-c", _CHANGE],
            input=json.dumps(given),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise Overdue(f"no answer in {seconds:g} s") from None
    if ran.returncode < 0:  # whoever ended it, perhaps for want of memory: the commit may be there
        raise Overdue(f"the process that changes it was ended by signal {-ran.returncode}")
    if ran.returncode == _LOST:
        raise CommitFailedError(f"another commit came behind version {version}")
    if ran.returncode:
        raise OSError(ran.stderr[-5000:])
