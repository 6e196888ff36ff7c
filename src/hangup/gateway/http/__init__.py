"""HTTP/1.1, SSE and JSON at the byte level, without I/O: strict about what peers send, cheap for what passes through."""
