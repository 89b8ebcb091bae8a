"""Credentials for S3 that can travel.

boto3 sessions cannot be pickled, and tasks on other machines need credentials too. So what travels are settings, and
each process makes its own session: keys that expire are renewed where they are used.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from objbuf_dagster.errors import InvalidInput

if TYPE_CHECKING:
    from obstore.auth.boto3 import Boto3CredentialProvider


@dataclass(slots=True)
class SessionCredentials:
    """An obstore credential provider by boto3's rules: these keys, else this profile, else what boto3 finds.

    Picklable, and prints no secret. Only keys that are given need no boto3 where they are used.
    """

    profile_name: str | None = None
    access_key_id: str | None = field(default=None, repr=False)
    secret_access_key: str | None = field(default=None, repr=False)
    session_token: str | None = field(default=None, repr=False)
    _provider: Boto3CredentialProvider | None = field(default=None, repr=False, compare=False)

    def __call__(self) -> Any:
        """Raises InvalidInput if there are none."""
        if self.access_key_id and self.secret_access_key:
            return {
                "access_key_id": self.access_key_id,
                "secret_access_key": self.secret_access_key,
                "token": self.session_token,
                "expires_at": None,
            }
        if self._provider is None:
            import boto3
            from obstore.auth.boto3 import Boto3CredentialProvider

            session = boto3.session.Session(profile_name=self.profile_name)
            if session.get_credentials() is None:
                raise InvalidInput(
                    "boto3 finds no credentials for S3: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile, "
                    "or give them to the S3Resource"
                )
            self._provider = Boto3CredentialProvider(session)
        return self._provider()

    def __getstate__(self) -> tuple[str | None, ...]:
        return self.profile_name, self.access_key_id, self.secret_access_key, self.session_token

    def __setstate__(self, state: tuple[str | None, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc]
