"""HTTP/1.1, SSE and JSON as bytes, without I/O: strict about what peers send, cheap about what passes through."""
