"""What a NameNode says when it refuses, and whether that may pass.

Two releases of hdfs-native tell it, ours and the one inside deltalake, each in a text of its own: the class of Java's
exception, its message and its stack trace, which names other classes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_SAID = re.compile(r"RPC ?[Ee]rror\W{1,40}?((?:[A-Za-z_]\w*[.$])*[A-Za-z_]\w*)\W*(.*)", re.DOTALL)
"""`RPCError("java.io.IOException", "...")` of ours, `RPC error : java.io.IOException ...` through deltalake."""

_TRACE = re.compile(r"(?:\s|\\n|\\t)+at [\w.$]+\(.*", re.DOTALL)
_ABOUT_SETTINGS = re.compile(
    r"invalid ?(argument|path)|url ?parse ?error|sasl ?error|gssapi|NoSASLMechanism|no valid SASL|unsupported",
    re.IGNORECASE,
)

_PASSING = {
    "CallQueueOverflowException",
    "ConnectException",
    "ConnectTimeoutException",
    "ConnectionNullException",
    "EOFException",
    "IOException",  # itself, not what is made from it: too few DataNodes, a lease that another client holds
    "InterruptedIOException",
    "LeaseExpiredException",
    "NoNamenodesAvailableException",
    "NoRouteToHostException",
    "NotReplicatedYetException",
    "ObserverRetryOnActiveException",
    "RecoveryInProgressException",
    "RemoteException",
    "RetriableException",
    "RouterSafeModeException",
    "SafeModeException",
    "SocketException",
    "SocketTimeoutException",
    "StandbyException",
    "StateStoreUnavailableException",
    "SubClusterTimeoutException",
}
"""Java's classes by their last name; all others are for good."""

_NO_NODES, _SETTINGS = "no nodes", "settings"
_HINTS = {
    _NO_NODES: "nothing names the NameNodes, give the URL a port, or the settings dfs.ha.namenodes.<nameservice> and "
    "dfs.namenode.rpc-address.<nameservice>.<node> as options or in HADOOP_CONF_DIR",
    _SETTINGS: "the hdfs client cannot use its settings, correct them",
    "AccessControlException": "access denied, check HADOOP_USER_NAME or the Kerberos ticket, and this user's rights",
    "DSQuotaExceededException": "the directory's quota is full, free some space or raise it",
    "NSQuotaExceededException": "the directory's quota of names is full, free some or raise it",
    "QuotaByStorageTypeExceededException": "the directory's quota is full, free some space or raise it",
    "ParentNotDirectoryException": "a part of its path is a file, give it another place",
}


@dataclass(frozen=True, slots=True)
class Refusal:
    """kind: the class of the exception, by its last name, or what is wrong with the settings. line: what was said."""

    kind: str
    line: str

    @property
    def passing(self) -> bool:
        return self.kind in _PASSING

    @property
    def hint(self) -> str:
        return _HINTS.get(self.kind, "hdfs refused")


def refusal_in(text: str) -> Refusal | None:
    """What the NameNode said, or the client of its settings; None if it tells of the way to the NameNode."""
    if said := _SAID.search(text):
        kind = re.split(r"[.$]", said[1])[-1]
        return Refusal(kind, f"{kind}: {one_line(said[2]).replace(' : ', ': ')}")
    if "No NameNode hosts" in text:
        return Refusal(_NO_NODES, one_line(text))
    return Refusal(_SETTINGS, one_line(text)) if _ABOUT_SETTINGS.search(text) else None


def one_line(said: object) -> str:
    """Without a stack trace."""
    return " ".join(_TRACE.sub("", str(said)).split())[:400]
