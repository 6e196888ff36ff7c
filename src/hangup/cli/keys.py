"""`hangup key new`: makes an API key for a tenant, and the digest for the configuration."""

from __future__ import annotations

import argparse
import hashlib
import json
import secrets
import sys
from typing import Any


def add_parser(commands: Any) -> None:
    parser = commands.add_parser("key")
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True)
    new = actions.add_parser("new", help="create a key and its digest; hangup does not store the key")
    new.add_argument("--json", action="store_true", help="as JSON")
    new.set_defaults(run=run_new)
    digest = actions.add_parser("digest", help="print the digest of a key read from standard input")
    digest.set_defaults(run=run_digest)


def run_new(arguments: argparse.Namespace) -> int:
    key = "hu-" + secrets.token_urlsafe(32)
    if arguments.json:
        print(json.dumps({"key": key, "key_sha256": digest_of(key)}))
        return 0
    print(f"key          {key}")
    print(f"key_sha256   {digest_of(key)}")
    hint = f'Give the key to the client, and its tenant the digest: key_sha256 = ["{digest_of(key)}"]'
    print(hint, file=sys.stderr)
    return 0


def run_digest(arguments: argparse.Namespace) -> int:
    print(digest_of(sys.stdin.readline().rstrip("\r\n")))
    return 0


def digest_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()
