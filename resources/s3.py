"""Buckets that speak S3, with the settings and credentials of dagster-aws' S3Resource."""

from __future__ import annotations

import os
from typing import Any

import dagster as dg
from dagster_aws.s3 import S3Resource

from objbuf_dagster.orchestration import BufferResource, LakeResource, SparkResource
from resources import settings

_FIELDS = {
    "endpoint_url": "OBJBUF_S3_ENDPOINT_URL",
    "region_name": "OBJBUF_S3_REGION",
    "profile_name": "OBJBUF_S3_PROFILE",
    "aws_access_key_id": "OBJBUF_S3_ACCESS_KEY_ID",
    "aws_secret_access_key": "OBJBUF_S3_SECRET_ACCESS_KEY",
    "aws_session_token": "OBJBUF_S3_SESSION_TOKEN",
}
"""What is not set here is left to boto3: AWS_ACCESS_KEY_ID, a profile, the machine's own role."""


def resources() -> dict[str, Any]:
    """`EnvVar` keeps what it names out of the UI and of the run's stored config."""
    given: dict[str, Any] = {field: dg.EnvVar(name) for field, name in _FIELDS.items() if os.environ.get(name)}
    s3 = S3Resource(**given)
    buffer, lake = settings.buffer(), settings.lake()
    return {
        "s3": s3,
        "buffer": BufferResource(**buffer, s3=s3 if settings.is_bucket(buffer["url"]) else None),
        "lake": LakeResource(**lake, s3=s3 if settings.is_bucket(lake["url"]) else None),
        "spark": SparkResource(**settings.spark()),
    }
