"""The shared secret of jobs that exchange weights, and a proof of the secret that does not reveal the secret."""

from __future__ import annotations

import hashlib
import hmac
import os

TOKEN = "SHARDWIRE_JOB_TOKEN"


def proof(role: str, body: str) -> str:
    """The proof; empty in a job without a token."""
    token = os.environ.get(TOKEN, "")
    return hmac.new(token.encode(), f"shardwire.{role}|{body}".encode(), hashlib.sha256).hexdigest() if token else ""


def is_proof(given: str, role: str, body: str) -> bool:
    return hmac.compare_digest(proof(role, body).encode(), given.encode())


def how_it_differs(other_has_one: bool) -> str:
    """The text of an error after the name of the other side: the difference between the tokens of both sides."""
    own = bool(os.environ.get(TOKEN))
    if own and other_has_one:
        how = f"has another {TOKEN} than this process"
    else:
        how = (f"has a {TOKEN}, and this process has none" if other_has_one
               else f"has no {TOKEN}, and this process has one")
    return f"{how}: set it to one secret for both jobs (shardwire.launch makes a random one for each job that has none)"
