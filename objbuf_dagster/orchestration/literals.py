"""Credentials that were written into a resource.

Dagster stores what a resource was given with every job, and shows it in the UI; of an `EnvVar` that is the variable's
name. In a run Dagster makes the resource anew, with what the variables say: then all is as it should be.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import dagster as dg

from objbuf_dagster.errors import InvalidInput
from objbuf_dagster.spark.session import is_secret
from objbuf_dagster.store.showable import is_showable, is_showable_url

_OTHERWISE = 'give it as EnvVar("NAME"), or leave it to the S3Resource, a profile or a role'
_S3_SECRETS = ("aws_secret_access_key", "aws_session_token")
_ENDPOINT = "endpoint_url"
_NO_SECRET = re.compile(r"true|false|(?:org|com|software)\.[\w.$,\s]+", re.IGNORECASE)
"""Values that say nothing, whatever their setting is called: of a switch, and names of Java's classes."""

_REMOTE = "spark.remote"
_KNOWN_OF_REMOTE = ("use_ssl", "user_id", "user_agent", "session_id")
"""What may follow the address of a Spark Connect server; all else is sent to it as a header."""


class Guarded(dg.ConfigurableResource):  # type: ignore[type-arg]
    """A resource that becomes no definition with a credential in it."""

    @classmethod
    def check_given(cls, given: Mapping[str, Any]) -> None:
        """Raises InvalidInput, with the name of what may be a credential, and never its value."""
        raise NotImplementedError

    def check_literals(self) -> None:
        """The same for this one, as it was given."""
        if not self._is_of_a_run():
            self.check_given(dict(self))

    def get_resource_definition(self) -> Any:
        """What Dagster asks for before it stores anything. Raises InvalidInput as `check_given` does."""
        self.check_literals()
        return super().get_resource_definition()

    @classmethod
    def configure_at_launch(cls, **given: Any) -> Any:
        cls.check_given(given)
        return super().configure_at_launch(**given)

    def _is_of_a_run(self) -> bool:
        try:
            self.get_resource_context()
        except Exception:  # noqa: BLE001  Dagster's own error for it has no public name
            return False
        return True


def check_resources(resources: Mapping[str, Any]) -> None:
    """Those of a pipeline, the S3Resources among them. Raises InvalidInput."""
    for name, resource in resources.items():
        if isinstance(resource, Guarded):
            resource.check_literals()
        elif hasattr(resource, "use_unsigned_session"):
            _check_s3(name, resource)


def check_place(kind: str, given: Mapping[str, Any]) -> None:
    """The URL and the options of a store. Raises InvalidInput."""
    url = given.get("url")
    if _is_literal(url) and not is_showable_url(str(url)):
        raise InvalidInput(
            f"the url of {kind} has a user in it, or a part behind '?' or '#'. That may be a credential, and Dagster "
            'stores it: leave it out, and give credentials as options by EnvVar("NAME"), or leave them to the '
            "S3Resource, a profile or a role"
        )
    for name, value in (given.get("options") or {}).items():
        if _is_literal(value) and not _may_be_stored(name, str(value)):
            raise InvalidInput(
                f"the option {name!r} of {kind} may be a credential, or have one in it, and Dagster stores it: "
                f"{_OTHERWISE}"
            )


def check_spark(kind: str, where: str, settings: Mapping[str, str]) -> None:
    """Settings of Spark that stand in this field. Raises InvalidInput."""
    for name, value in settings.items():
        if _may_be_secret(name, value) or (name == _REMOTE and _has_headers(value)):
            raise InvalidInput(
                f"{name}, in {where} of {kind}, may be a credential, or have one in it, and Dagster stores it: give it "
                'in more_config=EnvVar("NAME"), as JSON, or an address in remote=EnvVar("NAME")'
            )


def _check_s3(name: str, s3: Any) -> None:
    found = [field for field in _S3_SECRETS if _is_literal(getattr(s3, field))]
    if _is_literal(s3.endpoint_url) and not is_showable(_ENDPOINT, s3.endpoint_url):
        found.append(_ENDPOINT)
    if found:
        raise InvalidInput(
            f"{found[0]} of the resource {name!r} is a credential, or has one in it, and Dagster stores it: give it as "
            'EnvVar("NAME"), or leave it to a profile or a role'
        )


def _is_literal(value: object) -> bool:
    return isinstance(value, str) and not isinstance(value, dg.EnvVar) and value != ""


def _may_be_stored(name: str, value: str) -> bool:
    """Names of Hadoop's settings have dots, and there are hundreds; those of stores have none."""
    return not _may_be_secret(name, value) if "." in name else is_showable(name, value)


def _may_be_secret(name: str, value: str) -> bool:
    return not _NO_SECRET.fullmatch(value.strip()) and is_secret(name, value)


def _has_headers(address: str) -> bool:
    parameters = [one.partition("=")[0].strip() for one in address.partition(";")[2].split(";")]
    return any(one and one not in _KNOWN_OF_REMOTE for one in parameters)
