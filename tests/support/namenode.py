"""A NameNode and its DataNode in this process, on a port each of the loopback: as much of Hadoop's protocols as our two
clients ask for, with files in memory. It answers in milliseconds, and refuses, loses or ignores what a test names.

What a real one does is for tests/spark/test_hdfs.py to say.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO, Literal

Spoiling = tuple[str, str] | Literal["silent", "lost"] | None
"""A class and what it says: the call is refused. `silent`: nothing is done, and no answer comes, nor any after it on
this connection. `lost`: it is done, and the connection ends without an answer."""

_DIRECTORY, _FILE = 1, 2
_FIXED64, _BYTES, _FIXED32 = 1, 2, 5
_WRITE_BLOCK = 80
_NO_CHECKSUM = 0
_PACKET_BYTES = 64 << 10
_BLOCK_BYTES = 128 << 20

Value = int | str | bytes | Sequence[bytes]


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _message(fields: dict[int, Value]) -> bytes:
    """A message of protobuf, of numbers, texts, and messages that are bytes already."""
    out = b""
    for number, value in fields.items():
        if isinstance(value, int):
            out += _varint(number << 3) + _varint(value)
            continue
        for one in [value.encode()] if isinstance(value, str) else [value] if isinstance(value, bytes) else value:
            out += _varint(number << 3 | _BYTES) + _delimited(one)
    return out


def _delimited(message: bytes) -> bytes:
    return _varint(len(message)) + message


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        shift += 7
        at += 1
        if data[at - 1] < 0x80:
            return value, at


def _take(data: bytes, at: int = 0) -> tuple[bytes, int]:
    size, at = _read_varint(data, at)
    return data[at : at + size], at + size


_ABOUT_NO_PATH: dict[str, dict[int, Value]] = {
    "getServerDefaults": {1: _message({1: _BLOCK_BYTES, 2: 512, 3: _PACKET_BYTES, 4: 1, 5: 4096, 6: 0, 7: 0, 8: 2})},
    "renewLease": {},
}


class _Fields(dict[int, int | bytes]):
    """A message as it came, the last value of each field."""

    @classmethod
    def of(cls, data: bytes) -> _Fields:
        found = cls()
        at = 0
        while at < len(data):
            key, at = _read_varint(data, at)
            kind = key & 7
            if kind == _BYTES:
                found[key >> 3], at = _take(data, at)
            elif kind in (_FIXED64, _FIXED32):
                size = 8 if kind == _FIXED64 else 4
                found[key >> 3] = int.from_bytes(data[at : at + size], "little", signed=True)
                at += size
            else:
                found[key >> 3], at = _read_varint(data, at)
        return found

    def number(self, field: int) -> int:
        value = self.get(field, 0)
        assert isinstance(value, int)
        return value

    def data(self, field: int) -> bytes:
        value = self.get(field, b"")
        assert isinstance(value, bytes)
        return value

    def text(self, field: int) -> str:
        return self.data(field).decode()


class _Refused(Exception):
    pass


@dataclass
class File:
    block: int
    modified_ms: int


@dataclass
class NameNode:
    """files: by path; directories are what is above them. calls: method and path, as they came."""

    files: dict[str, File] = field(default_factory=dict)
    blocks: dict[int, bytes] = field(default_factory=dict)
    calls: list[tuple[str, str]] = field(default_factory=list)
    spoil: Callable[[str, str], Spoiling] = lambda method, path: None
    port: int = 0
    data_port: int = 0
    done: threading.Event = field(default_factory=threading.Event)
    _lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def url(self) -> str:
        return f"hdfs://127.0.0.1:{self.port}"

    def read(self, path: str) -> bytes:
        return self.blocks[self.files[path].block]

    def put(self, path: str, data: bytes, *, age_seconds: float = 0.0) -> None:
        """A file that somebody left there so long ago."""
        block = len(self.blocks) + 1
        self.blocks[block] = data
        self.files[path] = File(block, round((time.time() - age_seconds) * 1000))

    def count(self, method: str, path_end: str = "") -> int:
        return sum(one == method and path.endswith(path_end) for one, path in self.calls)

    def answer_calls(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            _exactly(stream, 7)
            while self._answer_one(stream, connection):
                pass

    def _answer_one(self, stream: BinaryIO, connection: socket.socket) -> bool:
        """Whether there may be another one."""
        (size,) = struct.unpack(">I", _exactly(stream, 4))
        data = _exactly(stream, size)
        head, at = _take(data)
        number = _Fields.of(head).number(3)
        call = number >> 1 ^ -(number & 1)
        if call < 0:  # the connection's own
            return True
        head, at = _take(data, at)
        method, asked = _Fields.of(head).text(1), _Fields.of(_take(data, at)[0])
        path = "" if method in _ABOUT_NO_PATH else asked.text(1)
        self.calls.append((method, path))
        spoiling = self.spoil(method, path)
        if spoiling == "silent":
            self.done.wait()
            return False
        header: dict[int, Value] = {1: call, 2: 0}
        answer = b""
        try:
            if isinstance(spoiling, tuple):
                raise _Refused(*spoiling)
            answer = _delimited(_message(self._answer(method, asked)))
        except _Refused as refused:
            header |= {2: 1, 4: refused.args[0], 5: refused.args[1]}
        if spoiling == "lost":
            return False
        answer = _delimited(_message(header)) + answer
        connection.sendall(struct.pack(">I", len(answer)) + answer)
        return True

    def _answer(self, method: str, asked: _Fields) -> dict[int, Value]:
        if method in _ABOUT_NO_PATH:
            return _ABOUT_NO_PATH[method]
        with self._lock:
            found: dict[int, Value] = getattr(self, f"_{re.sub('[A-Z]', lambda big: f'_{big[0].lower()}', method)}")(
                asked
            )
            return found

    def _is_directory(self, path: str) -> bool:
        return path == "/" or any(name.startswith(f"{path.rstrip('/')}/") for name in self.files)

    def _status(self, path: str, name: str) -> bytes:
        file = self.files.get(path)
        fields: dict[int, Value] = {
            1: _FILE if file else _DIRECTORY,
            2: name,
            3: len(self.blocks[file.block]) if file else 0,
            4: _message({1: 0o644}),
            5: "me",
            6: "us",
            7: file.modified_ms if file else 0,
            8: 0,
            10: 1,
            11: _BLOCK_BYTES,
        }
        if file:
            fields[12] = self._locations(file)
        return _message(fields)

    def _locations(self, file: File) -> bytes:
        size = len(self.blocks[file.block])
        blocks = [self._located(file.block, size)] if size else []
        return _message({1: size, 2: blocks, 3: 0, 5: 1})

    def _located(self, block: int, size: int) -> bytes:
        node = _message({1: "127.0.0.1", 2: "localhost", 3: "node", 4: self.data_port, 5: 0, 6: 0})
        token = _message({1: b"", 2: b"", 3: "", 4: ""})
        extended = _message({1: "pool", 2: block, 3: 1, 4: size})
        return _message({1: extended, 2: 0, 3: [_message({1: node})], 4: 0, 5: token, 7: 1, 8: "storage"})

    def _get_file_info(self, asked: _Fields) -> dict[int, Value]:
        path = asked.text(1)
        return {1: self._status(path, "")} if path in self.files or self._is_directory(path) else {}

    def _get_block_locations(self, asked: _Fields) -> dict[int, Value]:
        return {1: self._locations(self._file(asked.text(1)))}

    def _file(self, path: str) -> File:
        if path not in self.files:
            raise _Refused("java.io.FileNotFoundException", f"File does not exist: {path}")
        return self.files[path]

    def _get_listing(self, asked: _Fields) -> dict[int, Value]:
        top = asked.text(1).rstrip("/")
        if top in self.files:
            return {1: _message({1: [self._status(top, "")], 2: 0})}
        if not self._is_directory(top):
            return {}
        names = sorted({name[len(top) + 1 :].partition("/")[0] for name in self.files if name.startswith(f"{top}/")})
        return {1: _message({1: [self._status(f"{top}/{name}", name) for name in names], 2: 0})}

    def _create(self, asked: _Fields) -> dict[int, Value]:
        path = asked.text(1)
        if path in self.files and not asked.number(4) & 2:
            raise _Refused("org.apache.hadoop.fs.FileAlreadyExistsException", f"{path} already exists")
        self.put(path, b"")
        return {1: self._status(path, "")}

    def _add_block(self, asked: _Fields) -> dict[int, Value]:
        return {1: self._located(self._file(asked.text(1)).block, 0)}

    def _complete(self, asked: _Fields) -> dict[int, Value]:
        self._file(asked.text(1))
        return {1: 1}

    def _rename2(self, asked: _Fields) -> dict[int, Value]:
        source, target = asked.text(1), asked.text(2)
        self._file(source)
        if target in self.files and not asked.number(3):
            raise _Refused("org.apache.hadoop.fs.FileAlreadyExistsException", f"rename destination {target} exists")
        self.files[target] = self.files.pop(source)
        return {}

    def _delete(self, asked: _Fields) -> dict[int, Value]:
        return {1: int(self.files.pop(asked.text(1), None) is not None)}

    def move_data(self, connection: socket.socket) -> None:
        with connection.makefile("rb") as stream:
            while True:
                self._move(stream, connection)

    def _move(self, stream: BinaryIO, connection: socket.socket) -> None:
        operation = _exactly(stream, 3)[2]
        asked = _Fields.of(_exactly(stream, _size(stream)))
        block = _Fields.of(_Fields.of(_Fields.of(asked.data(1)).data(1)).data(1)).number(2)
        if operation == _WRITE_BLOCK:
            connection.sendall(_delimited(_message({1: 0, 2: ""})))
            self._write(stream, connection, block)
        else:
            checksum = _message({1: _message({1: _NO_CHECKSUM, 2: 512}), 2: asked.number(2)})
            connection.sendall(_delimited(_message({1: 0, 4: checksum})))
            data = self.blocks[block][asked.number(2) : asked.number(2) + asked.number(3)]
            for at in range(0, len(data) + _PACKET_BYTES, _PACKET_BYTES):
                connection.sendall(_packet(asked.number(2) + at, data[at : at + _PACKET_BYTES]))
            _exactly(stream, _size(stream))

    def _write(self, stream: BinaryIO, connection: socket.socket, block: int) -> None:
        while True:
            size, head_size = struct.unpack(">IH", _exactly(stream, 6))
            head = _Fields.of(_exactly(stream, head_size))
            data = _exactly(stream, size - 4)
            length = head.number(4)
            self.blocks[block] += data[len(data) - length :]
            connection.sendall(_delimited(_message({1: head.number(2) * 2, 2: 0})))
            if head.number(3):
                return


def _packet(offset: int, data: bytes) -> bytes:
    head = struct.pack("<Bq", 1 << 3 | _FIXED64, offset) + struct.pack("<Bq", 2 << 3 | _FIXED64, 0)
    head += bytes([3 << 3, not data]) + struct.pack("<Bi", 4 << 3 | _FIXED32, len(data))
    return struct.pack(">IH", 4 + len(data), len(head)) + head + data


class _Closed(Exception):
    pass


def _exactly(stream: BinaryIO, size: int) -> bytes:
    data = stream.read(size)
    if len(data) < size:
        raise _Closed
    return data


def _size(stream: BinaryIO) -> int:
    data = b""
    while not data or data[-1] >= 0x80:
        data += _exactly(stream, 1)
    return _read_varint(data, 0)[0]


@contextlib.contextmanager
def name_node() -> Iterator[NameNode]:
    """One for as long as the context lasts."""
    node = NameNode()
    talks: list[threading.Thread] = []
    connections: list[socket.socket] = []

    def serve(listener: socket.socket, talk: Callable[[socket.socket], None]) -> None:
        with contextlib.suppress(OSError):  # it is shut down
            while True:
                connection, _ = listener.accept()
                connections.append(connection)
                talks.append(threading.Thread(target=one, args=(connection, talk), daemon=True))
                talks[-1].start()

    def one(connection: socket.socket, talk: Callable[[socket.socket], None]) -> None:
        with connection, contextlib.suppress(_Closed, OSError):
            talk(connection)

    with socket.create_server(("127.0.0.1", 0)) as names, socket.create_server(("127.0.0.1", 0)) as data:
        node.port, node.data_port = names.getsockname()[1], data.getsockname()[1]
        serving = [
            threading.Thread(target=serve, args=(listener, talk), daemon=True)
            for listener, talk in ((names, node.answer_calls), (data, node.move_data))
        ]
        for thread in serving:
            thread.start()
        try:
            yield node
        finally:
            node.done.set()
            for listener in (names, data):
                listener.shutdown(socket.SHUT_RDWR)
            for thread in serving:
                thread.join()
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
            for thread in talks:
                thread.join()
