"""The client's side: its sockets, its requests, and above all its departure."""
