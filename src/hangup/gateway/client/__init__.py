"""The client's side: its sockets and its requests, and above all the detection of its hang-up."""
