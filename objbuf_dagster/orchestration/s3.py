"""dagster-aws' S3Resource as settings and credentials of a store."""

from __future__ import annotations

from typing import Any

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.store import SessionCredentials


def settings_of(s3: Any) -> tuple[dict[str, str], SessionCredentials | None]:
    """What `open_store` takes as options and credentials, from an S3Resource.

    Raises InvalidInput for what has no equivalent there, instead of leaving it aside without a word.
    """
    if not hasattr(s3, "use_unsigned_session"):
        raise InvalidInput(f"s3 must be dagster-aws' S3Resource, not {type(s3).__name__}")
    if s3.verify is False:
        raise InvalidInput("S3Resource(verify=False) is not supported: use a certificate that can be verified, or http")
    if not s3.use_ssl:
        raise InvalidInput("S3Resource(use_ssl=False) is not supported: give an endpoint_url that begins with http://")
    options: dict[str, str] = {}
    if region := s3.region_name or _default_region(s3.profile_name):
        options["region"] = region
    if s3.endpoint_url:
        options["endpoint"] = s3.endpoint_url
    if s3.use_unsigned_session:
        return {**options, "skip_signature": "true"}, None
    return options, SessionCredentials(
        s3.profile_name, s3.aws_access_key_id, s3.aws_secret_access_key, s3.aws_session_token
    )


def _default_region(profile: str | None) -> str | None:
    import boto3

    region = boto3.session.Session(profile_name=profile).region_name
    return None if region is None else str(region)
