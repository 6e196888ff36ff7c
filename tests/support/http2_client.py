"""A client that speaks HTTP/2 without TLS, with several calls on one connection."""

from __future__ import annotations

import json
import socket
from typing import Any

import h2.config
import h2.connection
import h2.errors
import h2.events

from support.waiting import PATIENCE_S


class Http2Client:
    def __init__(self, port: int) -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._http = h2.connection.H2Connection(h2.config.H2Configuration(client_side=True, header_encoding="utf-8"))
        self._http.initiate_connection()
        self._flush()
        self.bodies: dict[int, bytes] = {}

    def __enter__(self) -> Http2Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._sock.close()

    def chat(self, **fields: Any) -> int:
        """Send a call; return its stream's number."""
        number = self._http.get_next_available_stream_id()
        head = [(":method", "POST"), (":scheme", "http"), (":authority", "localhost"), (":path", "/v1/chat/completions")]
        self._http.send_headers(number, [*head, ("content-type", "application/json")])
        self._http.send_data(number, json.dumps({"messages": [], **fields}).encode(), end_stream=True)
        self.bodies[number] = b""
        self._flush()
        return number

    def read_until(self, number: int, mark: bytes) -> None:
        while mark not in self.bodies[number]:
            data = self._sock.recv(65536)
            assert data, "the proxy closed the connection"
            for event in self._http.receive_data(data):
                if isinstance(event, h2.events.DataReceived):
                    self.bodies[event.stream_id] += event.data
                    self._http.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                assert not isinstance(event, h2.events.StreamReset | h2.events.ConnectionTerminated), event
            self._flush()

    def cancel(self, number: int) -> None:
        """Give up one call; the others go on."""
        self._http.reset_stream(number, h2.errors.ErrorCodes.CANCEL)
        self._flush()

    def _flush(self) -> None:
        self._sock.sendall(self._http.data_to_send())
