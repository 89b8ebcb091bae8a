"""What may be shown and stored of where a store is and how it is reached."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

_CLOUD_PREFIX = re.compile(r"^(aws|google|azure_storage|azure)_")
_SHOWABLE = frozenset(
    {
        "account_name",
        "authority_host",
        "checksum_algorithm",
        "conditional_put",
        "copy_if_not_exists",
        "default_region",
        "disable_tagging",
        "endpoint",
        "endpoint_url",
        "imdsv1_fallback",
        "metadata_endpoint",
        "region",
        "request_payer",
        "s3_express",
        "server_side_encryption",
        "skip_signature",
        "sse_bucket_key_enabled",
        "sse_kms_key_id",
        "unsigned_payload",
        "use_emulator",
        "use_fabric_endpoint",
        "virtual_hosted_style_request",
    }
)
"""Settings of a store that are no credentials and lead to none. Spark writes options into plans, its event log and its
pages, and Dagster stores what a resource was given; so all others are refused there, whatever they are called."""

_NAMES_A_CONTAINER = ("abfs", "abfss")
"""Before the `@` of these is no user."""


def is_showable(name: str, value: str) -> bool:
    """Whether this setting of a store is no credential, and has none in it."""
    return _CLOUD_PREFIX.sub("", name.lower(), count=1) in _SHOWABLE and not _has_secret(value)


def is_showable_url(url: str) -> bool:
    """Whether a store's URL has neither a user nor a signature in it. A path of a directory is no URL."""
    scheme, is_url, rest = url.partition("://")
    if not is_url:
        return True
    names_a_container = scheme.lower() in _NAMES_A_CONTAINER and ":" not in rest.partition("@")[0]
    return not _has_secret(url.replace("@", "", 1) if names_a_container else url)


def safe_url(url: str) -> str:
    """A URL without what may be secret in it."""
    return re.sub(r"//.*@", "//...@", re.split(r"[?#]", url)[0])


def _has_secret(value: str) -> bool:
    """A URL with a user or a signature in it."""
    try:
        parts = urlsplit(value)
    except ValueError:
        return True
    return "@" in parts.netloc or bool(parts.query or parts.fragment)
